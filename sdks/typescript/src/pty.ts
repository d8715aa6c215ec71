/** Terminals (PTYs) of a sandbox. They survive their clients and restarts of the server. */

import type { CallOptions, Client } from "./client.js";
import { ConnectionError } from "./error.js";
import type * as api from "./generated/api.js";
import { TerminalNotFoundError } from "./generated/errors.js";
import { listAll } from "./pages.js";
import { platform } from "./platform.js";
import { randomName } from "./random.js";
import { Terminal, type TerminalListeners } from "./terminal.js";

/** Maximum number of attempts for a create whose response is lost. */
const TRIES = 10;

/** Options of a new terminal. */
export interface TerminalOptions extends CallOptions, TerminalListeners {
    /** Width in characters. The default is 80. */
    cols?: number;
    /** Height in lines. The default is 24. */
    rows?: number;
    /** The program to run. The default is a login shell. */
    shell?: string;
    /** The working directory. The default is the user's home directory. */
    cwd?: string;
    /** User name. The default is the template's user. */
    user?: string;
    /** Environment variables, which override those of the sandbox. */
    env?: Record<string, string>;
}

/** The terminals of a sandbox. */
export class Terminals {
    readonly #client: Client;
    readonly #path: string;

    /** @internal */
    constructor(client: Client, sandbox: string) {
        this.#client = client;
        this.#path = `/sandboxes/${sandbox}/pty`;
    }

    /** Creates a terminal and connects to it. */
    async create(options: TerminalOptions = {}): Promise<Terminal> {
        const { cols, rows, shell, cwd, user, env, requestTimeout, signal } = options;
        const json = { cols, rows, shell, cwd, user, envs: env };
        // Fails before a terminal is created if there is no WebSocket implementation.
        await platform.WebSocket();
        const made = await this.#make(json, { requestTimeout, signal });
        return await Terminal.join(this.#client, this.#path, made, { ...options, made: true });
    }

    /** Creates a terminal. Its tag finds it if the response is lost; the idempotency key covers concurrent retries. */
    async #make(body: object, options: CallOptions): Promise<api.Terminal> {
        const tag = randomName();
        const [json, headers] = [{ ...body, tag }, { "idempotency-key": tag }];
        for (let tries = 1; ; tries++) {
            try {
                return await this.#client.json<api.Terminal>("POST", this.#path, { json, headers, ...options });
            } catch (error) {
                if (!(error instanceof ConnectionError && error.sent) || tries === TRIES) {
                    throw error;
                }
            }
            try {
                return await this.#client.json<api.Terminal>("GET", `${this.#path}/tag:${tag}`, options);
            } catch (error) {
                if (!(error instanceof TerminalNotFoundError)) {
                    throw error;
                }
            }
        }
    }

    /** Connects to an existing terminal. Its current screen is the first output. */
    async connect(ptyID: string, options: CallOptions & TerminalListeners = {}): Promise<Terminal> {
        const { requestTimeout, signal } = options;
        const path = `${this.#path}/${encodeURIComponent(ptyID)}`;
        const found = await this.#client.json<api.Terminal>("GET", path, { requestTimeout, signal });
        return await Terminal.join(this.#client, this.#path, found, { ...options, made: false });
    }

    /** Lists the terminals, newest first. */
    async list(options: CallOptions = {}): Promise<api.Terminal[]> {
        return await listAll(this.#client, this.#path, options);
    }
}
