/** A command that runs, or ran: its output from any position, its input, its end. */

import type { CallOptions, Client } from "./client.js";
import { Deadline, backoff } from "./deadline.js";
import { CommandTimeoutError } from "./error.js";
import type { Exit, StdinOffset } from "./generated/api.js";
import { platform } from "./platform.js";

/** How a command ended, and what it wrote. */
export interface CommandResult {
    /** Its id: `commands.connect` has all of its output that is kept. */
    execID: string;
    /** 124 after its deadline, 137 after an OOM kill, 128 + n after signal n. */
    exitCode: number;
    /** Text; what is none is U+FFFD. */
    stdout: string;
    /** The same of its standard error. */
    stderr: string;
    /** What ended it. */
    signal: number | undefined;
    /** Its deadline came first. */
    timedOut: boolean;
    /** The kernel killed something of it for want of memory. */
    oomKilled: boolean;
    /** It wrote more than the 10 MiB of each stream that are here; iteration has all that is kept. */
    truncated: boolean;
}

/** A piece of output, or of `gap` what is kept no more. */
export type OutputEvent =
    | {
          type: "stdout" | "stderr";
          /** Where it begins: bytes of both streams together. */
          position: number;
          data: Uint8Array;
          /** As text; a character that is cut comes with the next piece. */
          text: string;
      }
    | { type: "gap"; from: number; to: number };

/** How long to wait for a command without a deadline of its own, in seconds. */
const HOUR = 3600;
/** How much of each stream a result has, as in the API. */
const KEPT = 10 << 20;
/** How much input is sent at a time; a body may have 1 MiB. */
const PART = 256 << 10;

type Decoders = Record<"stdout" | "stderr", TextDecoder>;
const decoders = (): Decoders => ({ stdout: new TextDecoder(), stderr: new TextDecoder() });

interface Listeners {
    onStdout?: (text: string) => void;
    onStderr?: (text: string) => void;
}

/** The result; a `CommandTimeoutError` if the command was ended by its timeout. */
export function inTime(cmd: string, result: CommandResult): CommandResult {
    if (result.timedOut) {
        throw new CommandTimeoutError(cmd, result);
    }
    return result;
}

/** A command in the background. It goes on whoever listens; iterate over it for its output. */
export class CommandHandle implements AsyncIterable<OutputEvent> {
    /** Its id. */
    readonly execID: string;
    /** Inside the sandbox. */
    readonly pid: number;
    readonly #client: Client;
    readonly #path: string;
    readonly #cmd: string;
    readonly #listeners: Listeners;
    readonly #timeout: number | undefined;
    #exit: Exit | undefined;
    #listening: Promise<CommandResult> | undefined;
    #result: CommandResult | undefined;
    /** What whoever listens was told: the next one goes on behind it. */
    readonly #told = { at: 0, decoders: decoders(), text: { stdout: [] as string[], stderr: [] as string[] }, size: { stdout: 0, stderr: 0 }, truncated: false };
    #stop = new AbortController();
    #waiting = 0;
    /** How much input was taken, once it is known. */
    #taken: number | undefined;
    /** Input goes one after the other. */
    #sending: Promise<unknown> = Promise.resolve();

    /** @internal */
    constructor(client: Client, path: string, execID: string, pid: number, cmd: string, listeners: Listeners, timeout?: number) {
        this.#client = client;
        this.#cmd = cmd;
        this.#path = `${path}/${execID}`;
        this.execID = execID;
        this.pid = pid;
        this.#listeners = listeners;
        this.#timeout = timeout;
    }

    /**
     * Its output from the beginning, or from a position on, until it ends; goes on by itself after a lost connection or a
     * restart of the server, with nothing missing and nothing twice.
     */
    async *output(options: { after?: number; signal?: AbortSignal } = {}): AsyncGenerator<OutputEvent> {
        yield* this.#follow(options.after ?? 0, decoders(), options.signal);
    }

    async *#follow(after: number, decoders: Decoders, signal: AbortSignal | undefined): AsyncGenerator<OutputEvent> {
        const asked = { query: { encoding: "base64" }, after: String(after), signal };
        for await (const event of this.#client.events(`${this.#path}/output`, asked)) {
            const body = JSON.parse(event.data);
            switch (event.name) {
                case "stdout":
                case "stderr": {
                    const data = platform.fromBase64(body.base64);
                    const text = decoders[event.name].decode(data, { stream: true });
                    yield { type: event.name, position: body.position, data, text };
                    break;
                }
                case "gap":
                    yield { type: "gap", from: body.from, to: body.to };
                    break;
                case "exit":
                    this.#exit = body as Exit;
                    for (const type of ["stdout", "stderr"] as const) {
                        // Of a character that was never finished.
                        const text = decoders[type].decode();
                        if (text !== "") {
                            yield { type, position: Number(event.id), data: new Uint8Array(), text };
                        }
                    }
                    return;
            }
        }
    }

    [Symbol.asyncIterator](): AsyncGenerator<OutputEvent> {
        return this.output();
    }

    /**
     * Waits for its end. After `timeout` seconds that is a `TimeoutError`, and the command goes on; if nothing is said, half a minute more
     * than its own deadline, or an hour; 0 waits for ever. Listeners are told on. If its own timeout ended the command, that is a
     * `CommandTimeoutError`.
     */
    async wait(options: { timeout?: number; signal?: AbortSignal } = {}): Promise<CommandResult> {
        const own = this.#timeout ? this.#timeout + 30 : HOUR;
        const deadline = new Deadline(`the end of command ${this.execID}`, options.timeout ?? own, options.signal);
        this.#waiting++;
        try {
            return inTime(this.#cmd, await deadline.race(this.listen()));
        } finally {
            deadline.end();
            const { onStdout, onStderr } = this.#listeners;
            if (--this.#waiting === 0 && !onStdout && !onStderr) {
                this.disconnect();
            }
        }
    }

    /** Stops listening; the command goes on. Whoever waits for it later gets all of its output. */
    disconnect(): void {
        this.#stop.abort();
    }

    /** @internal Follows it once for everybody who waits, telling listeners. */
    listen(): Promise<CommandResult> {
        if (this.#result) {
            return Promise.resolve(this.#result);
        }
        if (!this.#listening || this.#stop.signal.aborted) {
            this.#stop = new AbortController();
            const listening = this.#collect(this.#stop.signal);
            this.#listening = listening;
            listening.catch(() => {
                // Whoever waits is told; the next one tries again.
                if (this.#listening === listening) {
                    this.#listening = undefined;
                }
            });
        }
        return this.#listening;
    }

    async #collect(signal: AbortSignal): Promise<CommandResult> {
        const { onStdout, onStderr } = this.#listeners;
        const told = this.#told;
        const { text, size } = told;
        for await (const event of this.#follow(told.at, told.decoders, signal)) {
            // Somebody else may listen by now.
            signal.throwIfAborted();
            if (event.type === "gap") {
                [told.at, told.truncated] = [event.to, true];
                continue;
            }
            told.at = event.position + event.data.length;
            (event.type === "stdout" ? onStdout : onStderr)?.(event.text);
            if (size[event.type] < KEPT) {
                text[event.type].push(event.text);
                size[event.type] += event.data.length;
            } else {
                told.truncated = true;
            }
        }
        this.#result = {
            execID: this.execID,
            exitCode: this.#exit?.exitCode ?? -1,
            stdout: text.stdout.join(""),
            stderr: text.stderr.join(""),
            signal: this.#exit?.signal ?? undefined,
            timedOut: this.#exit?.timedOut ?? false,
            oomKilled: this.#exit?.oomKilled ?? false,
            truncated: told.truncated,
        };
        return this.#result;
    }

    /** Sends a signal; 9, if nothing is said, ends everything the command started. */
    async kill(signal = 9, options: CallOptions = {}): Promise<void> {
        const repeat = signal === 9 ? "always" : "unsent";
        await this.#client.json("POST", `${this.#path}/signal`, { json: { signal }, repeat, ...options });
    }

    /** Sends input to a command that was started with `openStdin`; done when all of it was taken, each byte once. */
    async sendStdin(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
        const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
        const sent = this.#sending.then(() => this.#send(bytes, options));
        this.#sending = sent.catch(() => {});
        await sent;
    }

    /** Ends its input. */
    async closeStdin(options: CallOptions = {}): Promise<void> {
        await this.#sending;
        await this.#client.json("POST", `${this.#path}/stdin/close`, { repeat: "always", ...options });
    }

    /** @internal All of its input, from the beginning: what it has already is not sent again. */
    async feed(text: string, options: CallOptions): Promise<void> {
        this.#taken = 0;
        await this.sendStdin(text, options);
        await this.closeStdin({ signal: options.signal });
    }

    async #send(bytes: Uint8Array, options: CallOptions): Promise<void> {
        const seconds = options.requestTimeout ?? this.#client.requestTimeout;
        const deadline = new Deadline(`input of command ${this.execID}`, seconds, options.signal);
        try {
            // Somebody else may have sent some before.
            const begin = this.#taken ?? (await this.#write(0, new Uint8Array(), deadline));
            let [sent, waits] = [0, 0];
            while (sent < bytes.length) {
                const taken = (await this.#write(begin + sent, bytes.subarray(sent, sent + PART), deadline)) - begin;
                waits = taken > sent ? 0 : waits + 1;
                sent = taken;
                if (waits > 0) {
                    await deadline.sleep(backoff(waits));
                }
            }
            this.#taken = begin + sent;
        } finally {
            deadline.end();
        }
    }

    async #write(offset: number, part: Uint8Array, deadline: Deadline): Promise<number> {
        const answer = await this.#client.json<StdinOffset>("POST", `${this.#path}/stdin`, {
            query: { offset },
            body: () => part as Uint8Array<ArrayBuffer>,
            repeat: "always",
            signal: deadline.signal,
        });
        return answer.taken;
    }
}
