/** A sandbox: its life, and the way to its commands, files, terminals and ports. */

import { type Asked, type CallOptions, Client, type ConnectionOptions, type Query, call } from "./client.js";
import { Commands } from "./commands.js";
import { AtollError } from "./error.js";
import { Files } from "./files.js";
import type * as api from "./generated/api.js";
import { pages } from "./pages.js";
import { platform } from "./platform.js";
import { Terminals } from "./pty.js";
import { randomName } from "./random.js";

/** What a new sandbox is like; everything may be left out. */
export interface CreateOptions extends Omit<api.NewSandbox, "envs" | "templateID" | "networkEnabled">, ConnectionOptions, CallOptions {
    /** Variables of every command; never told again. */
    env?: Record<string, string>;
}

/** Which sandboxes are listed. */
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

/** How a local port leads to one of a sandbox. */
export interface ForwardOptions {
    /** The port here; a free one if nothing is said. */
    localPort?: number;
    /** Where it listens; this machine alone if nothing is said. */
    host?: string;
}

/** A local port that leads to one of a sandbox. */
export interface Forward extends AsyncDisposable {
    /** Such as `127.0.0.1`. */
    host: string;
    /** The port here. */
    port: number;
    /** Why the last connection that failed did, if one has: nobody may listen in the sandbox. */
    readonly lastError: Error | undefined;
    /** Closes it, with the connections through it. */
    close(): Promise<void>;
}

const SPLIT = ["url", "apiKey", "profile", "requestTimeout", "reconnect", "client", "signal"] as const;

/** A sandbox. One that `create` made is deleted by `await using`; one that was connected to stays. */
export class Sandbox implements AsyncDisposable {
    /** Its id. */
    readonly id: string;
    /** The server it is on. */
    readonly client: Client;
    /** Its commands. */
    readonly commands: Commands;
    /** Its files. */
    readonly files: Files;
    /** Its terminals. */
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

    /** Makes a sandbox, one, however often the connection breaks; commands work when this is done. */
    static async create(options: CreateOptions = {}): Promise<Sandbox> {
        const { env, ...asked } = options;
        for (const name of SPLIT) {
            delete asked[name];
        }
        const client = Client.of(options);
        const info = await client.json<api.Sandbox>("POST", "/sandboxes", {
            json: { ...asked, envs: env },
            headers: { "idempotency-key": randomName() },
            repeat: "always",
            requestTimeout: options.requestTimeout,
            signal: options.signal,
        });
        return new Sandbox(client, info, true);
    }

    /** A sandbox that is there, by its id or alias. */
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
        const asked = { ...call(options), query: { ...conditions(options), limit: 1 } };
        return await Client.of(options).request("GET", "/sandboxes", asked, async (response) => {
            await response.body?.cancel();
            return Number(response.headers.get("x-total-count"));
        });
    }

    /** What it is like now. */
    async info(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.client.json("GET", this.#path, options);
    }

    /** Changes its alias, metadata, limits or what happens at its end. */
    async update(change: api.SandboxChange, options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.client.json("PATCH", this.#path, { json: change, repeat: "always", ...options });
    }

    /** It lives so many seconds from now; 0 is without end, as far as the org allows. */
    async setTimeout(seconds: number, options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("timeout", options, { timeout: seconds });
    }

    /** Tells that it is in use. */
    async keepAlive(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("keepalive", options);
    }

    /** Lets it stand still, with its processes. */
    async pause(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("pause", options);
    }

    /** Lets it go on. `timeout` is in seconds from now; what was left if nothing is said. */
    async resume(options: CallOptions & { timeout?: number } = {}): Promise<api.Sandbox> {
        return await this.#change("resume", options, { timeout: options.timeout });
    }

    /** Ends its processes; its files stay. */
    async stop(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("stop", options);
    }

    /** Starts it again, with its files. */
    async start(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("start", options);
    }

    /** Stops and starts it. Twice is not once: it is not repeated if the answer gets lost. */
    async restart(options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.#change("restart", options, undefined, "unsent");
    }

    /** What its programs may reach, from now on. */
    async setNetwork(rules: api.NetworkRules, options: CallOptions = {}): Promise<api.Sandbox> {
        return await this.client.json("PUT", `${this.#path}/network`, { json: rules, repeat: "always", ...options });
    }

    /** On which ports something listens. */
    async ports(options: CallOptions = {}): Promise<api.Port[]> {
        return await this.client.json("GET", `${this.#path}/ports`, options);
    }

    /** What it used in the last hour, and uses now. */
    async metrics(options: CallOptions & { start?: string; end?: string } = {}): Promise<api.Sample[]> {
        const { start, end } = options;
        return await this.client.json("GET", `${this.#path}/metrics`, { ...call(options), query: { start, end } });
    }

    /** What all its commands wrote, line by line; with `follow`, what they write from then on too, until it is deleted. */
    async *logs(options: CallOptions & { follow?: boolean } = {}): AsyncGenerator<api.LogLine> {
        if (!options.follow) {
            yield* pages<api.LogLine>(this.client, `${this.#path}/logs`, "after", {}, options);
            return;
        }
        try {
            const asked = { query: { follow: true }, signal: options.signal };
            for await (const event of this.client.events(`${this.#path}/logs`, asked)) {
                yield JSON.parse(event.data) as api.LogLine;
            }
        } catch (error) {
            if (!isGone(error)) {
                throw error;
            }
        }
    }

    /** Opens a local port that leads to one of the sandbox, also of a server that listens on its loopback alone. Node only. */
    async forward(port: number, options: ForwardOptions = {}): Promise<Forward> {
        return await platform.forward(this.client, this.id, port, options);
    }

    /** Deletes it, with its files. */
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
            // Its time may have been up before.
            if (!isGone(error)) {
                throw error;
            }
        }
    }

    async #change(route: string, options: CallOptions, json?: object, repeat: Asked["repeat"] = "always"): Promise<api.Sandbox> {
        return await this.client.json("POST", `${this.#path}/${route}`, { ...call(options), json, repeat });
    }
}

function isGone(error: unknown): boolean {
    return error instanceof AtollError && error.code === "SANDBOX_NOT_FOUND";
}
