/** Handles to running and finished commands: their output, input and result. */

import type { CallOptions, Client } from "./client.js";
import { Deadline, backoff } from "./deadline.js";
import { CommandTimeoutError } from "./error.js";
import type { Exit, StdinOffset } from "./generated/api.js";
import { platform } from "./platform.js";

/** The result of a command. */
export interface CommandResult {
    /** The command's id. `commands.connect` reads all output that the server keeps. */
    execID: string;
    /** 124 after a timeout, 137 after an OOM kill, 128 + n after signal n. */
    exitCode: number;
    /** Standard output as UTF-8; invalid bytes become U+FFFD. */
    stdout: string;
    /** Standard error, in the same form. */
    stderr: string;
    /** The signal that ended the command. */
    signal: number | undefined;
    /** The timeout ended the command. */
    timedOut: boolean;
    /** The kernel's OOM killer killed a process of the command. */
    oomKilled: boolean;
    /** The result has only the first 10 MiB of each stream; iteration yields all output that the server keeps. */
    truncated: boolean;
}

/** A piece of output, or a `gap` of output that the server no longer keeps. */
export type OutputEvent =
    | {
          type: "stdout" | "stderr";
          /** Offset of the first byte, counted over both streams. */
          position: number;
          data: Uint8Array;
          /** The bytes as text. A character that is split between two pieces is in the second. */
          text: string;
      }
    | { type: "gap"; from: number; to: number };

/** Default wait for a command without a timeout, in seconds. */
const HOUR = 3600;
/** Bytes of each stream in a result, as in the API. */
const KEPT = 10 << 20;
/** Bytes of input in one request; the server accepts 1 MiB. */
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

/** A background command. It keeps running when the client disconnects. Iterate over it for its output. */
export class CommandHandle implements AsyncIterable<OutputEvent> {
    /** The command's id. */
    readonly execID: string;
    /** The process id in the sandbox. */
    readonly pid: number;
    readonly #client: Client;
    readonly #path: string;
    readonly #cmd: string;
    readonly #listeners: Listeners;
    readonly #timeout: number | undefined;
    #exit: Exit | undefined;
    #listening: Promise<CommandResult> | undefined;
    #result: CommandResult | undefined;
    /** Output received so far; the next call of `listen` continues after it. */
    readonly #received = { at: 0, decoders: decoders(), text: { stdout: [] as string[], stderr: [] as string[] }, size: { stdout: 0, stderr: 0 }, truncated: false };
    #stop = new AbortController();
    #waiting = 0;
    /** Offset of the next byte of input; `undefined` until the server reported it. */
    #taken: number | undefined;
    /** The previous write: writes are sent one after the other. */
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
     * Yields output from the position `after` (default 0) until the command ends, without gaps or repetitions, also if the
     * connection breaks or the server restarts in the meantime.
     */
    async *output(options: { after?: number; signal?: AbortSignal } = {}): AsyncGenerator<OutputEvent> {
        yield* this.#follow(options.after ?? 0, decoders(), options.signal);
    }

    async *#follow(after: number, decoders: Decoders, signal: AbortSignal | undefined): AsyncGenerator<OutputEvent> {
        const request = { query: { encoding: "base64" }, after: String(after), signal };
        for await (const event of this.#client.events(`${this.#path}/output`, request)) {
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
                        // The rest of an incomplete character.
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
     * Waits until the command ends. Throws a `TimeoutError` after `timeout` seconds; the command keeps running and listeners are still
     * called. The default is the command's own timeout plus 30 s, or an hour if it has none; 0 is no limit. Throws a `CommandTimeoutError`
     * if the command's own timeout ended it.
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

    /** Disconnects; the command keeps running. A later `wait` still returns all of its output. */
    disconnect(): void {
        this.#stop.abort();
    }

    /** @internal Reads the output once for all waiting callers, and calls the listeners. */
    listen(): Promise<CommandResult> {
        if (this.#result) {
            return Promise.resolve(this.#result);
        }
        if (!this.#listening || this.#stop.signal.aborted) {
            this.#stop = new AbortController();
            const listening = this.#collect(this.#stop.signal);
            this.#listening = listening;
            listening.catch(() => {
                // Waiting callers get the error; the next call tries again.
                if (this.#listening === listening) {
                    this.#listening = undefined;
                }
            });
        }
        return this.#listening;
    }

    async #collect(signal: AbortSignal): Promise<CommandResult> {
        const { onStdout, onStderr } = this.#listeners;
        const received = this.#received;
        const { text, size } = received;
        for await (const event of this.#follow(received.at, received.decoders, signal)) {
            // Another call of `listen` may have replaced this one.
            signal.throwIfAborted();
            if (event.type === "gap") {
                [received.at, received.truncated] = [event.to, true];
                continue;
            }
            received.at = event.position + event.data.length;
            (event.type === "stdout" ? onStdout : onStderr)?.(event.text);
            if (size[event.type] < KEPT) {
                text[event.type].push(event.text);
                size[event.type] += event.data.length;
            } else {
                received.truncated = true;
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
            truncated: received.truncated,
        };
        return this.#result;
    }

    /** Sends a signal. The default, 9, kills the command and all its child processes. */
    async kill(signal = 9, options: CallOptions = {}): Promise<void> {
        const repeat = signal === 9 ? "always" : "unsent";
        await this.#client.json("POST", `${this.#path}/signal`, { json: { signal }, repeat, ...options });
    }

    /** Writes to the standard input of a command that was started with `openStdin`, and waits until all of it is written. Each byte is written once. */
    async sendStdin(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
        const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
        const sent = this.#sending.then(() => this.#send(bytes, options));
        this.#sending = sent.catch(() => {});
        await sent;
    }

    /** Closes the command's standard input. */
    async closeStdin(options: CallOptions = {}): Promise<void> {
        await this.#sending;
        await this.#client.json("POST", `${this.#path}/stdin/close`, { repeat: "always", ...options });
    }

    /** @internal Writes the complete input and closes it. */
    async feed(text: string, options: CallOptions): Promise<void> {
        this.#taken = 0;
        await this.sendStdin(text, options);
        await this.closeStdin({ signal: options.signal });
    }

    async #send(bytes: Uint8Array, options: CallOptions): Promise<void> {
        const seconds = options.requestTimeout ?? this.#client.requestTimeout;
        const deadline = new Deadline(`input of command ${this.execID}`, seconds, options.signal);
        try {
            // Another client may have written input before.
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
