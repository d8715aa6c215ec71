/** Commands of a sandbox, in the foreground and in the background. */

import type { CallOptions, Client } from "./client.js";
import { CommandHandle, type CommandResult, inTime } from "./command-handle.js";
import type { Command, CommandResult as FinishedCommand, NewCommand, StartedCommand } from "./generated/api.js";
import { StdinClosedError } from "./generated/errors.js";
import { listAll } from "./pages.js";
import { randomName } from "./random.js";

/** Options of a command. */
export interface RunOptions extends CallOptions {
    /** Arguments. With them, the command is a program instead of a shell command line. */
    args?: string[];
    /** The working directory. The default is the user's home directory. */
    cwd?: string;
    /** Environment variables, which override those of the sandbox. */
    env?: Record<string, string>;
    /** User name. The default is the template's user. */
    user?: string;
    /**
     * Seconds until the command and all its child processes are killed, which throws a `CommandTimeoutError` with the output until then in
     * `result`. 0 disables the timeout. The default is 60 in the foreground and no timeout in the background.
     */
    timeout?: number;
    /** A name for `connect("tag:NAME")`. */
    tag?: string;
    /** Called with each piece of standard output. */
    onStdout?: (text: string) => void;
    /** Called with each piece of standard error. */
    onStderr?: (text: string) => void;
}

/** Options of a foreground command. */
export interface ForegroundOptions extends RunOptions {
    /** Wait for the command's end. */
    background?: false;
    /** The complete standard input. */
    stdin?: string;
}

/** Options of a background command. */
export interface BackgroundOptions extends RunOptions {
    /** Return a handle without waiting for the command's end. */
    background: true;
    /** Keep standard input open for `sendStdin`, until `closeStdin`. */
    openStdin?: boolean;
}

/** Default timeout of a foreground command, in seconds. */
const DEADLINE = 60;
/** Commands with a longer timeout, in seconds, use an event stream, as proxies close requests that are silent for so long. */
const LONGEST_REQUEST = 120;
/** Longer input, in characters, is sent separately, as a request is limited to 1 MiB. */
const LARGE = 64 << 10;
/** Time for the response in addition to the command's timeout, in seconds. */
const GRACE = 30;

/** The commands of a sandbox. */
export class Commands {
    readonly #client: Client;
    readonly #path: string;

    /** @internal */
    constructor(client: Client, sandbox: string) {
        this.#client = client;
        this.#path = `/sandboxes/${sandbox}/commands`;
    }

    /**
     * Runs a command and waits for its end, or starts it in the background. An exit code other than 0 is no error. The command runs once,
     * also if the connection breaks.
     */
    run(cmd: string, options: BackgroundOptions): Promise<CommandHandle>;
    run(cmd: string, options?: ForegroundOptions): Promise<CommandResult>;
    async run(cmd: string, options: ForegroundOptions | BackgroundOptions = {}): Promise<CommandResult | CommandHandle> {
        if (options.background) {
            const handle = await this.#start(cmd, options, options.openStdin ?? false, options.timeout);
            return withListeners(handle, options);
        }
        const timeout = options.timeout ?? DEADLINE;
        const large = (options.stdin?.length ?? 0) > LARGE;
        if (options.onStdout || options.onStderr || large || timeout > LONGEST_REQUEST || timeout === 0) {
            const handle = await this.#start(cmd, options, options.stdin !== undefined, timeout);
            return await this.#finish(handle, options, timeout);
        }
        const body = { ...this.#body(cmd, options), stdin: options.stdin, timeout };
        return inTime(line(cmd, options.args), result(await this.#post(body, options, timeout + GRACE)));
    }

    /** Returns a handle to a running or finished command by its id, `tag:NAME` or `pid:N`. */
    async connect(execID: string, options: CallOptions & Pick<RunOptions, "onStdout" | "onStderr"> = {}): Promise<CommandHandle> {
        const found = await this.get(execID, options);
        const handle = new CommandHandle(this.#client, this.#path, found.execID, found.pid, line(found.cmd, found.args), options);
        return withListeners(handle, options);
    }

    /** Returns a command by its id, `tag:NAME` or `pid:N`. */
    async get(execID: string, options: CallOptions = {}): Promise<Command> {
        return await this.#client.json("GET", `${this.#path}/${encodeURIComponent(execID)}`, options);
    }

    /** Lists running and recently finished commands, newest first. */
    async list(options: CallOptions = {}): Promise<Command[]> {
        return await listAll(this.#client, this.#path, options);
    }

    #body(cmd: string, options: RunOptions): NewCommand {
        const { args, cwd, user, env } = options;
        return { cmd, args, cwd, user, envs: env, tag: options.tag };
    }

    async #start(cmd: string, options: RunOptions, openStdin: boolean, timeout: number | undefined): Promise<CommandHandle> {
        const body = { ...this.#body(cmd, options), background: true, openStdin, timeout };
        const began = await this.#post<StartedCommand>(body, options, options.requestTimeout ?? this.#client.requestTimeout);
        return new CommandHandle(this.#client, this.#path, began.execID, began.pid, line(cmd, options.args), options, timeout);
    }

    /** Waits for a command through its event stream, and writes its input. */
    async #finish(handle: CommandHandle, options: ForegroundOptions, timeout: number): Promise<CommandResult> {
        // The command may read its input at any time until its timeout.
        const within = timeout === 0 ? 0 : timeout + GRACE;
        let failed: unknown;
        if (options.stdin !== undefined) {
            handle.feed(options.stdin, { requestTimeout: within, signal: options.signal }).catch((error: unknown) => {
                // A command need not read all of its input. After any other error it would wait for input that never arrives.
                if (!(error instanceof StdinClosedError)) {
                    failed = error;
                    handle.kill().catch(() => {});
                }
            });
        }
        try {
            const done = await handle.wait({ timeout: within, signal: options.signal });
            if (failed !== undefined) {
                throw failed;
            }
            return done;
        } finally {
            handle.disconnect();
        }
    }

    /** Starts a command. With the idempotency key, a retry does not start a second one. */
    async #post<T>(body: NewCommand, options: RunOptions, requestTimeout: number): Promise<T> {
        const headers = { "idempotency-key": randomName() };
        return await this.#client.json("POST", this.#path, { json: body, headers, repeat: "always", requestTimeout, signal: options.signal });
    }
}

/** A command with its arguments, for messages. */
function line(cmd: string, args: readonly string[] = []): string {
    return [cmd, ...args].join(" ");
}

/** Starts to call the listeners, if there are any. */
function withListeners(handle: CommandHandle, { onStdout, onStderr }: Pick<RunOptions, "onStdout" | "onStderr">): CommandHandle {
    if (onStdout || onStderr) {
        handle.listen();
    }
    return handle;
}

function result(finished: FinishedCommand): CommandResult {
    const { execID, exitCode, stdout, stderr } = finished;
    return {
        execID,
        exitCode,
        stdout,
        stderr,
        signal: finished.signal ?? undefined,
        timedOut: finished.timedOut ?? false,
        oomKilled: finished.oomKilled ?? false,
        truncated: finished.truncated ?? false,
    };
}
