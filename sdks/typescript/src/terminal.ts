/**
 * A terminal that was joined. A lost connection is made again by itself: then the screen comes first, as it is now. Keys
 * that were on their way at that moment may be lost.
 */

import type { CallOptions, Client } from "./client.js";
import { Deadline, Patience, backoff } from "./deadline.js";
import { AtollError, ConnectionError } from "./error.js";
import type * as api from "./generated/api.js";
import { SandboxNotFoundError, SandboxStoppedError } from "./generated/errors.js";
import { type Closed, closeReason, openSocket } from "./socket.js";

/** Whoever wants to be told. */
export interface TerminalListeners {
    /** Called with output as it comes; without it, iterate. */
    onData?: (data: Uint8Array) => void;
}

/** How much output waits for somebody who iterates, in bytes; whoever is behind further gets the screen instead. */
const MOST = 4 << 20;
const HOUR = 3600;

/** A terminal; iterate over it for its output. After `await using`, one that was made is ended, and one that was joined is left. */
export class Terminal implements AsyncIterable<Uint8Array>, AsyncDisposable {
    /** Its id. */
    readonly ptyID: string;
    /** Inside the sandbox. */
    readonly pid: number;
    readonly #client: Client;
    readonly #path: string;
    /** Whether it ends with its block. */
    readonly #made: boolean;
    readonly #onData: ((data: Uint8Array) => void) | undefined;
    #socket: WebSocket | undefined;
    #queue: Uint8Array[] = [];
    #waiting = 0;
    #behind = false;
    /** Whoever iterates is woken by this. */
    #wake = () => {};
    #over: { error: Error | undefined } | undefined;
    readonly #ended: Promise<void>;
    #end: (error?: Error) => void = () => {};

    private constructor(client: Client, path: string, about: api.Terminal, made: boolean, listeners: TerminalListeners) {
        this.#client = client;
        this.ptyID = about.ptyID;
        this.pid = about.pid;
        this.#path = `${path}/${about.ptyID}`;
        this.#made = made;
        this.#onData = listeners.onData;
        this.#ended = new Promise((done, fail) => {
            this.#end = (error) => {
                this.#over ??= { error };
                this.#wake();
                error ? fail(error) : done();
            };
        });
        this.#ended.catch(() => {});
    }

    /** @internal */
    static async join(
        client: Client,
        path: string,
        about: api.Terminal,
        options: CallOptions & TerminalListeners & { made: boolean },
    ): Promise<Terminal> {
        const terminal = new Terminal(client, path, about, options.made, options);
        await terminal.#connectAgain(options);
        return terminal;
    }

    async #connect(options: CallOptions = {}): Promise<void> {
        const listeners = {
            message: (data: ArrayBuffer) => this.#take(new Uint8Array(data)),
            close: (event: Closed) => {
                this.#socket = undefined;
                void this.#closed(event);
            },
        };
        const socket = await openSocket(this.#client, this.#path, listeners, options);
        if (this.#over) {
            socket.close();
        } else if (socket.readyState === 1) {
            this.#socket = socket;
        }
    }

    #take(data: Uint8Array): void {
        if (this.#onData) {
            this.#onData(data);
            return;
        }
        this.#queue.push(data);
        this.#waiting += data.length;
        if (this.#waiting > MOST) {
            [this.#queue, this.#waiting, this.#behind] = [[], 0, true];
            this.#socket?.close();
        }
        this.#wake();
    }

    async #closed(event: Closed): Promise<void> {
        if (this.#over || this.#behind) {
            return;
        }
        if (event.code === 1000) {
            this.#end();
        } else if (event.code >= 4000) {
            const error = await closeReason(this.#client, this.#path, event);
            this.#end(isOver(error) ? undefined : error);
        } else {
            await this.#rejoin();
        }
    }

    async #rejoin(): Promise<void> {
        try {
            await this.#client.json("GET", this.#path);
            await this.#connectAgain();
        } catch (error) {
            this.#end(isOver(error) ? undefined : (error as Error));
        }
    }

    /** Connects, as often as makes sense: joining twice does no harm. */
    async #connectAgain(options: CallOptions = {}): Promise<void> {
        const patience = new Patience(this.#client.reconnect * 1000);
        while (!this.#over) {
            try {
                return await this.#connect(options);
            } catch (error) {
                if (!(error instanceof ConnectionError) || !(await patience.pause())) {
                    throw error;
                }
            }
            // Says, better than a WebSocket can, that it is gone.
            await this.#client.json("GET", this.#path, { requestTimeout: options.requestTimeout, signal: options.signal });
        }
    }

    async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
        for (;;) {
            const data = this.#queue.shift();
            if (data) {
                this.#waiting -= data.length;
                yield data;
            } else if (this.#over) {
                if (this.#over.error) {
                    throw this.#over.error;
                }
                return;
            } else {
                const woken = new Promise<void>((wake) => {
                    this.#wake = wake;
                });
                if (this.#behind) {
                    this.#behind = false;
                    void this.#rejoin();
                }
                await woken;
            }
        }
    }

    /** Types. */
    async write(data: string | Uint8Array): Promise<void> {
        const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
        const socket = await this.#connected("the terminal's input");
        socket.send(bytes as Uint8Array<ArrayBuffer>);
    }

    /** Changes its size, for everybody who sees it. */
    async resize(cols: number, rows: number, options: CallOptions = {}): Promise<void> {
        await this.#client.json("POST", `${this.#path}/resize`, { json: { cols, rows }, repeat: "always", ...options });
    }

    /** Ends its program, with everything that it started. */
    async kill(options: CallOptions = {}): Promise<void> {
        await this.#client.json("DELETE", this.#path, { repeat: "always", done: "TERMINAL_NOT_FOUND", ...options });
    }

    /** Waits until its program has ended, `timeout` seconds at most: an hour if nothing is said, 0 is for ever. */
    async wait(options: { timeout?: number; signal?: AbortSignal } = {}): Promise<void> {
        const deadline = new Deadline(`the end of terminal ${this.ptyID}`, options.timeout ?? HOUR, options.signal);
        try {
            await deadline.race(this.#ended);
        } finally {
            deadline.end();
        }
    }

    /** Leaves it; its program goes on. */
    close(): void {
        this.#end();
        this.#socket?.close();
    }

    async [Symbol.asyncDispose](): Promise<void> {
        try {
            if (this.#made) {
                await this.kill();
            }
        } catch (error) {
            // It ended with its sandbox.
            if (!(error instanceof SandboxNotFoundError || error instanceof SandboxStoppedError)) {
                throw error;
            }
        } finally {
            this.close();
        }
    }

    /** The socket, when there is one again. */
    async #connected(what: string): Promise<WebSocket> {
        const deadline = new Deadline(what, this.#client.requestTimeout);
        try {
            for (let tries = 0; ; tries++) {
                if (this.#over) {
                    throw this.#over.error ?? new AtollError("the terminal has ended", { code: "TERMINAL_NOT_FOUND", category: "not_found" });
                }
                if (this.#socket?.readyState === 1) {
                    return this.#socket;
                }
                await deadline.sleep(backoff(tries));
            }
        } finally {
            deadline.end();
        }
    }
}

/** A terminal that is not there any more has ended. */
function isOver(error: unknown): boolean {
    return error instanceof AtollError && error.code === "TERMINAL_NOT_FOUND";
}
