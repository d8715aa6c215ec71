/**
 * Connections to terminals. A lost connection is reestablished; the current screen is the first output then. Input that was
 * being sent when the connection broke may be lost.
 */

import type { CallOptions, Client } from "./client.js";
import { Deadline, RetryPolicy, backoff } from "./deadline.js";
import { AtollError, ConnectionError } from "./error.js";
import type * as api from "./generated/api.js";
import { SandboxNotFoundError, SandboxStoppedError } from "./generated/errors.js";
import { type Closed, closeReason, openSocket } from "./socket.js";

/** Listeners of a terminal. */
export interface TerminalListeners {
    /** Called with each piece of output; without it, iterate over the terminal. */
    onData?: (data: Uint8Array) => void;
}

/** Maximum buffered output for an iterator, in bytes. A slower iterator gets the current screen instead of the missed output. */
const MOST = 4 << 20;
const HOUR = 3600;

/** A connection to a terminal; iterate over it for its output. `await using` kills a terminal that `create` returned, and only disconnects from one that `connect` returned. */
export class Terminal implements AsyncIterable<Uint8Array>, AsyncDisposable {
    /** The terminal's id. */
    readonly ptyID: string;
    /** The process id in the sandbox. */
    readonly pid: number;
    readonly #client: Client;
    readonly #path: string;
    /** Whether `await using` kills the terminal. */
    readonly #made: boolean;
    readonly #onData: ((data: Uint8Array) => void) | undefined;
    #socket: WebSocket | undefined;
    #queue: Uint8Array[] = [];
    #waiting = 0;
    #behind = false;
    /** Wakes the iterator. */
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

    /** Connects, with retries: connecting is idempotent. */
    async #connectAgain(options: CallOptions = {}): Promise<void> {
        const retry = new RetryPolicy(this.#client.reconnect * 1000);
        while (!this.#over) {
            try {
                return await this.#connect(options);
            } catch (error) {
                if (!(error instanceof ConnectionError) || !(await retry.pause())) {
                    throw error;
                }
            }
            // The HTTP route returns the complete error, which a WebSocket cannot.
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

    /** Writes input to the terminal. */
    async write(data: string | Uint8Array): Promise<void> {
        const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
        const socket = await this.#connected("the terminal's input");
        socket.send(bytes as Uint8Array<ArrayBuffer>);
    }

    /** Changes the terminal's size, for all its clients. */
    async resize(cols: number, rows: number, options: CallOptions = {}): Promise<void> {
        await this.#client.json("POST", `${this.#path}/resize`, { json: { cols, rows }, repeat: "always", ...options });
    }

    /** Kills the program and all its child processes. */
    async kill(options: CallOptions = {}): Promise<void> {
        await this.#client.json("DELETE", this.#path, { repeat: "always", done: "TERMINAL_NOT_FOUND", ...options });
    }

    /** Waits until the program has ended, at most `timeout` seconds. The default is an hour; 0 is no limit. */
    async wait(options: { timeout?: number; signal?: AbortSignal } = {}): Promise<void> {
        const deadline = new Deadline(`the end of terminal ${this.ptyID}`, options.timeout ?? HOUR, options.signal);
        try {
            await deadline.race(this.#ended);
        } finally {
            deadline.end();
        }
    }

    /** Disconnects. The terminal keeps running. */
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
            // The terminal ended with its sandbox.
            if (!(error instanceof SandboxNotFoundError || error instanceof SandboxStoppedError)) {
                throw error;
            }
        } finally {
            this.close();
        }
    }

    /** Waits for an open socket. */
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

/** Whether the error means that the terminal has ended. */
function isOver(error: unknown): boolean {
    return error instanceof AtollError && error.code === "TERMINAL_NOT_FOUND";
}
