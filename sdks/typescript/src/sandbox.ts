/** Sandboxes: their lifecycle, and access to commands, files, terminals and ports. */

import { type RequestOptions, type CallOptions, Client, type ConnectionOptions, type Query, call } from "./client.js";
import { Commands } from "./commands.js";
import { AtollError } from "./error.js";
import { Files } from "./files.js";
import type * as api from "./generated/api.js";
import { pages } from "./pages.js";
import { platform } from "./platform.js";
import { Terminals } from "./pty.js";
import { randomName } from "./random.js";

/** Options of a new sandbox. All are optional. */
export interface CreateOptions extends Omit<api.NewSandbox, "envs" | "templateID" | "networkEnabled">, ConnectionOptions, CallOptions {
    /** Environment variables of every command. They are write-only: no response contains them. */
    env?: Record<string, string>;
}

/** Filters of a list of sandboxes. */
export interface ListOptions extends ConnectionOptions, CallOptions {
    /** Only sandboxes in this state. */
    state?: api.SandboxState;
    /** Only sandboxes of the template with this name. */
    template?: string;
    /** Only sandboxes whose metadata has these entries. */
    metadata?: Record<string, string>;
    /** Only sandboxes whose id or alias contains this text; case is ignored. */
    search?: string;
}

/** The query for a list of sandboxes. */
function conditions({ state, template, metadata, search }: ListOptions): Query {
    const entries = Object.entries(metadata ?? {}).map(([key, value]) => [`metadata.${key}`, value]);
    return { state, template, q: search, ...Object.fromEntries(entries) };
}

/** Options of a port forward. */
export interface ForwardOptions {
    /** The local port. The default is a free port. */
    localPort?: number;
    /** The local address to listen on. The default is `127.0.0.1`. */
    host?: string;
}

/** A local port that is forwarded to a port of a sandbox. */
export interface Forward extends AsyncDisposable {
    /** The local address, such as `127.0.0.1`. */
    host: string;
    /** The local port. */
    port: number;
    /** The error of the last connection that failed, such as a port without a listener. */
    readonly lastError: Error | undefined;
    /** Stops listening and closes the forwarded connections. */
    close(): Promise<void>;
}

const SPLIT = ["url", "apiKey", "profile", "requestTimeout", "reconnect", "client", "signal"] as const;

/** A sandbox. `await using` deletes a sandbox that `create` returned, and keeps one that `connect` returned. */
export class Sandbox implements AsyncDisposable {
    /** The sandbox's id. */
    readonly id: string;
    /** The client of the server that has the sandbox. */
    readonly client: Client;
    /** Runs commands. */
    readonly commands: Commands;
    /** Reads and changes files. */
    readonly files: Files;
    /** Opens terminals. */
    readonly pty: Terminals;
    readonly #path: string;
    readonly #made: boolean;

    private constructor(client: Client, info: api.Sandbox, made: boolean) {
        this.client = client;
        this.id = info.sandboxID;
        this.#path = `/sandboxes/${this.id}`;
        this.#made = made;
        this.commands = new Commands(client, this.id);
        this.files = new Files(client, this.id);
        this.pty = new Terminals(client, this.id);
    }

    /** Creates a sandbox and waits until it can run commands. A retry does not create a second one. */
    static async create(options: CreateOptions = {}): Promise<Sandbox> {
        const { env, ...body } = options;
        for (const name of SPLIT) {
            delete body[name];
        }
        const client = Client.of(options);
        const info = await client.json<api.Sandbox>("POST", "/sandboxes", {
            json: { ...body, envs: env },
            headers: { "idempotency-key": randomName() },
            repeat: "always",
            requestTimeout: options.requestTimeout,
            signal: options.signal,
        });
        return new Sandbox(client, info, true);
    }

    /** Returns an existing sandbox by its id or alias. */
    static async connect(id: string, options: ConnectionOptions & CallOptions = {}): Promise<Sandbox> {
        const client = Client.of(options);
        const info = await client.json<api.Sandbox>("GET", `/sandboxes/${encodeURIComponent(id)}`, call(options));
        return new Sandbox(client, info, false);
    }

    /** The sandboxes that meet all conditions, newest first; all of them without a condition. */
    static async *list(options: ListOptions = {}): AsyncGenerator<api.Sandbox> {
        yield* pages<api.Sandbox>(Client.of(options), "/sandboxes", "cursor", conditions(options), options);
    }

    /** The number of sandboxes that meet all conditions, which are those of `list`. */
    static async count(options: ListOptions = {}): Promise<number> {
        const request = { ...call(options), query: { ...conditions(options), limit: 1 } };
        return await Client.of(options).request("GET", "/sandboxes", request, async (response) => {
            await response.body?.cancel();
            return Number(response.headers.get("x-total-count"));
        });
    }

    /** Fetches the current state of the sandbox. */
    async info(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.client.json("GET", this.#path, options);
    }

    /** Changes the alias, metadata, limits or expiry actions. */
    async update(change: api.SandboxChange, options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.client.json("PATCH", this.#path, { json: change, repeat: "always", ...options });
    }

    /** Sets the remaining lifetime to `seconds` from now; 0 disables the timeout, if the org allows that. */
    async setTimeout(seconds: number, options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("timeout", options, { timeout: seconds });
    }

    /** Counts as activity: resets the idle timer. */
    async keepAlive(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("keepalive", options);
    }

    /** Pauses the sandbox: freezes its processes and its timeouts. */
    async pause(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("pause", options);
    }

    /** Resumes a paused sandbox. `timeout` is its new lifetime in seconds; the default is the remaining time. */
    async resume(options: CallOptions & { timeout?: number } = {}): Promise<api.Sandbox> {
        return await this.#change("resume", options, { timeout: options.timeout });
    }

    /** Stops the sandbox: ends its processes and keeps its files. */
    async stop(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("stop", options);
    }

    /** Starts a stopped sandbox. */
    async start(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("start", options);
    }

    /** Stops and starts the sandbox. Not idempotent: it is not retried if the response is lost. */
    async restart(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("restart", options, undefined, "unsent");
    }

    /** Sets the network mode and its rules. */
    async setNetwork(rules: api.NetworkRules, options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.client.json("PUT", `${this.#path}/network`, { json: rules, repeat: "always", ...options });
    }

    /** Lists the listening ports. */
    async ports(options: CallOptions = {}): Promise<api.Port[]> {
        return await this.client.json("GET", `${this.#path}/ports`, options);
    }

    /** Returns resource usage between `start` and `end`. The default is the last hour. */
    async metrics(options: CallOptions & { start?: string; end?: string } = {}): Promise<api.Sample[]> {
        const { start, end } = options;
        return await this.client.json("GET", `${this.#path}/metrics`, { ...call(options), query: { start, end } });
    }

    /** Yields the output of all commands line by line. With `follow`, also yields new lines until the sandbox is deleted. */
    async *logs(options: CallOptions & { follow?: boolean } = {}): AsyncGenerator<api.LogLine> {
        if (!options.follow) {
            yield* pages<api.LogLine>(this.client, `${this.#path}/logs`, "after", {}, options);
            return;
        }
        try {
            const request = { query: { follow: true }, signal: options.signal };
            for await (const event of this.client.events(`${this.#path}/logs`, request)) {
                yield JSON.parse(event.data) as api.LogLine;
            }
        } catch (error) {
            if (!isGone(error)) {
                throw error;
            }
        }
    }

    /** Forwards a local port to a port of the sandbox, also to servers that listen only on its loopback address. Node only. */
    async forward(port: number, options: ForwardOptions = {}): Promise<Forward> {
        return await platform.forward(this.client, this.id, port, options);
    }

    /** Deletes the sandbox and its files. */
    async delete(options: CallOptions = {}): Promise<void> {
        await this.client.json("DELETE", this.#path, { repeat: "always", done: "SANDBOX_NOT_FOUND", ...options });
    }

    async [Symbol.asyncDispose](): Promise<void> {
        if (!this.#made) {
            return;
        }
        try {
            await this.delete();
        } catch (error) {
            // The sandbox may have expired before.
            if (!isGone(error)) {
                throw error;
            }
        }
    }

    async #change(route: string, options: CallOptions, json?: object, repeat: RequestOptions["repeat"] = "always"): Promise<api.Sandbox> {
        return await this.client.json("POST", `${this.#path}/${route}`, { ...call(options), json, repeat });
    }
}

function isGone(error: unknown): boolean {
    return error instanceof AtollError && error.code === "SANDBOX_NOT_FOUND";
}
