/** Terminals of a sandbox. They stay when their clients go, also across a restart of the server. */

import type { CallOptions, Client } from "./client.js";
import { ConnectionError } from "./error.js";
import type * as api from "./generated/api.js";
import { TerminalNotFoundError } from "./generated/errors.js";
import { whole } from "./pages.js";
import { platform } from "./platform.js";
import { randomName } from "./random.js";
import { Terminal, type TerminalListeners } from "./terminal.js";

/** How often a terminal whose answer got lost is looked for. */
const TRIES = 10;

/** How a terminal is made. */
export interface TerminalOptions extends CallOptions, TerminalListeners {
    /** 80 if nothing is said. */
    cols?: number;
    /** 24 if nothing is said. */
    rows?: number;
    /** The program; a shell if nothing is said. */
    shell?: string;
    /** Where it begins; the user's home if nothing is said. */
    cwd?: string;
    /** As whom; the template's user if nothing is said. */
    user?: string;
    /** Variables that win over the sandbox's. */
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

    /** Makes a terminal and joins it. */
    async create(options: TerminalOptions = {}): Promise<Terminal> {
        const { cols, rows, shell, cwd, user, env, requestTimeout, signal } = options;
        const json = { cols, rows, shell, cwd, user, envs: env };
        // Where there is no way to join one, none is made.
        await platform.WebSocket();
        const made = await this.#make(json, { requestTimeout, signal });
        return await Terminal.join(this.#client, this.#path, made, { ...options, made: true });
    }

    /** Makes one: it is found by its tag if the answer gets lost, and the key makes it one even if it is asked for at the same moment. */
    async #make(asked: object, options: CallOptions): Promise<api.Terminal> {
        const tag = randomName();
        const [json, headers] = [{ ...asked, tag }, { "idempotency-key": tag }];
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

    /** Joins a terminal that is there: first comes what its screen shows. */
    async connect(ptyID: string, options: CallOptions & TerminalListeners = {}): Promise<Terminal> {
        const { requestTimeout, signal } = options;
        const path = `${this.#path}/${encodeURIComponent(ptyID)}`;
        const found = await this.#client.json<api.Terminal>("GET", path, { requestTimeout, signal });
        return await Terminal.join(this.#client, this.#path, found, { ...options, made: false });
    }

    /** Those that there are, newest first. */
    async list(options: CallOptions = {}): Promise<api.Terminal[]> {
        return await whole(this.#client, this.#path, options);
    }
}
