/** Commands of a sandbox: run and waited for, or started and followed. */

import type { CallOptions, Client } from "./client.js";
import { CommandHandle, type CommandResult, inTime } from "./command-handle.js";
import type { Command, CommandResult as FinishedCommand, NewCommand, StartedCommand } from "./generated/api.js";
import { StdinClosedError } from "./generated/errors.js";
import { whole } from "./pages.js";
import { randomName } from "./random.js";

/** How a command is run. */
export interface RunOptions extends CallOptions {
    /** Arguments; with them the command is a program and no line for a shell. */
    args?: string[];
    /** Where; the user's home if nothing is said. */
    cwd?: string;
    /** Variables that win over the sandbox's. */
    env?: Record<string, string>;
    /** As whom; the template's user if nothing is said. */
    user?: string;
    /**
     * When it is ended with everything it started, in seconds: a `CommandTimeoutError`, whose `result` has the output until then. 0 is
     * never. 60 unless it runs in the background.
     */
    timeout?: number;
    /** A name to find it by. */
    tag?: string;
    /** Called with standard output as it comes. */
    onStdout?: (text: string) => void;
    /** Called with standard error as it comes. */
    onStderr?: (text: string) => void;
}

/** How a command is run that is waited for. */
export interface ForegroundOptions extends RunOptions {
    /** Wait for its end. */
    background?: false;
    /** All of its input. */
    stdin?: string;
}

/** How a command is run that goes on by itself. */
export interface BackgroundOptions extends RunOptions {
    /** Come back at once, with a handle. */
    background: true;
    /** It gets what is sent by `sendStdin`, until `closeStdin`. */
    openStdin?: boolean;
}

/** How long a command that is waited for may take if nothing is said, in seconds. */
const DEADLINE = 60;
/** One that may take longer than this is followed: nothing between holds a silent request for so long. */
const PATIENT = 120;
/** Input that is longer, in characters, does not go with the request, which may have 1 MiB. */
const LARGE = 64 << 10;
/** What an answer may take besides the command itself, in seconds. */
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
     * Runs a command line and waits for its end; an exit code other than 0 is no failure. In the background: starts it. It is not run
     * twice if the connection breaks.
     */
    run(cmd: string, options: BackgroundOptions): Promise<CommandHandle>;
    run(cmd: string, options?: ForegroundOptions): Promise<CommandResult>;
    async run(cmd: string, options: ForegroundOptions | BackgroundOptions = {}): Promise<CommandResult | CommandHandle> {
        if (options.background) {
            const handle = await this.#start(cmd, options, options.openStdin ?? false, options.timeout);
            return listened(handle, options);
        }
        const timeout = options.timeout ?? DEADLINE;
        const large = (options.stdin?.length ?? 0) > LARGE;
        if (options.onStdout || options.onStderr || large || timeout > PATIENT || timeout === 0) {
            const handle = await this.#start(cmd, options, options.stdin !== undefined, timeout);
            return await this.#finish(handle, options, timeout);
        }
        const body = { ...this.#body(cmd, options), stdin: options.stdin, timeout };
        return inTime(line(cmd, options.args), result(await this.#post(body, options, timeout + GRACE)));
    }

    /** A command that was started before, by its id, `tag:NAME` or `pid:N`. */
    async connect(execID: string, options: CallOptions & Pick<RunOptions, "onStdout" | "onStderr"> = {}): Promise<CommandHandle> {
        const found = await this.get(execID, options);
        const handle = new CommandHandle(this.#client, this.#path, found.execID, found.pid, line(found.cmd, found.args), options);
        return listened(handle, options);
    }

    /** What is known of a command, by its id, `tag:NAME` or `pid:N`. */
    async get(execID: string, options: CallOptions = {}): Promise<Command> {
        return await this.#client.json("GET", `${this.#path}/${encodeURIComponent(execID)}`, options);
    }

    /** Its commands, newest first. */
    async list(options: CallOptions = {}): Promise<Command[]> {
        return await whole(this.#client, this.#path, options);
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

    /** The end of a command that is followed. */
    async #finish(handle: CommandHandle, options: ForegroundOptions, timeout: number): Promise<CommandResult> {
        // It has as long to read its input as it has at all.
        const within = timeout === 0 ? 0 : timeout + GRACE;
        let failed: unknown;
        if (options.stdin !== undefined) {
            handle.feed(options.stdin, { requestTimeout: within, signal: options.signal }).catch((error: unknown) => {
                // A command need not read all of its input; but without it, it would wait for what does not come.
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

    /** Starts a command: one, however often it has to be asked for. */
    async #post<T>(body: NewCommand, options: RunOptions, requestTimeout: number): Promise<T> {
        const headers = { "idempotency-key": randomName() };
        return await this.#client.json("POST", this.#path, { json: body, headers, repeat: "always", requestTimeout, signal: options.signal });
    }
}

/** A command with its arguments, for messages. */
function line(cmd: string, args: readonly string[] = []): string {
    return [cmd, ...args].join(" ");
}

/** Whoever wants to be told is told from now on. */
function listened(handle: CommandHandle, { onStdout, onStderr }: Pick<RunOptions, "onStdout" | "onStderr">): CommandHandle {
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
