/**
 * Requests to a server. One that cannot do harm twice is said again if the connection breaks; any is if it never left. No
 * call waits for ever: each has a deadline that its error names.
 */

import { Deadline, Patience, Silence, backoff, silence } from "./deadline.js";
import { AtollError, ConnectionError } from "./error.js";
import { invalid, refused, told } from "./failure.js";
import { type ServerEvent, serverEvents } from "./sse.js";
import { platform } from "./platform.js";

/** Which server, and how. What is not said comes from the environment. */
export interface ConnectionOptions {
    /** Such as `https://atoll.example`; else `ATOLL_URL`, the profile, or the local server. */
    url?: string;
    /** Else `ATOLL_API_KEY`, or the profile's. None is fine for a server that asks for none. */
    apiKey?: string;
    /** A profile of `atoll/config.toml` in the user's configuration directory; Node only. */
    profile?: string;
    /** How long a request may take, in seconds, unless the call says otherwise; 60. */
    requestTimeout?: number;
    /** How long a server that was there may be away before that is a failure, in seconds; 30, which is enough for a restart. */
    reconnect?: number;
    /** A client that is there already; the other options are not looked at then. */
    client?: Client;
}

/** What every call takes. */
export interface CallOptions {
    /** How long this may take, in seconds. */
    requestTimeout?: number;
    /** Gives the call up. */
    signal?: AbortSignal;
}

/** What every call takes, of options that have more. */
export function call(options: CallOptions): CallOptions {
    return { requestTimeout: options.requestTimeout, signal: options.signal };
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** A request. */
export interface Asked extends CallOptions {
    query?: Query;
    json?: unknown;
    /** Makes the body, for each attempt. */
    body?: () => BodyInit;
    headers?: Record<string, string>;
    /** `always` for what can be said twice without harm; `unsent` if only when it surely did not arrive; `never`. */
    repeat?: "always" | "unsent" | "never";
    /** A failure that means success if an earlier answer was lost: it is done already. */
    done?: string;
}

/** Where `atoll serve` listens if nothing is said. */
const LOCAL = "http://127.0.0.1:8080";
/** A request that was under way for so long, in milliseconds, had a server: it is looked for anew, */
const UNDER_WAY = 5_000;
/** but not more often than this. */
const ANEW = 10;
/** How often one that never was there is. */
const FIRST = 2;

/** What a proxy answers when the server behind it does not. */
const AWAY = [502, 503, 504];

/** Causes by which a server is not trusted: nothing has left then. */
const UNTRUSTED = /CERT|SELF_SIGNED|UNABLE_TO|ERR_TLS|ERR_SSL/;
/** Causes with which a request has not left. */
const UNSENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

const LOOK = "see that the server runs (atoll serve) and that ATOLL_URL is its URL";
const LOOK_FROM_A_PAGE = "see that the server runs, and was started with --cors-origin and this page's origin";
const TRUST = "a certificate of your own is trusted with NODE_EXTRA_CA_CERTS; a server without one is http://";

/** A server, and how it is spoken to. Connections are kept and used again. */
export class Client {
    /** Where it is. */
    readonly url: string;
    /** How long a request may take, in seconds. */
    readonly requestTimeout: number;
    /** How long it may be away, in seconds. */
    readonly reconnect: number;
    readonly #key: string | undefined;
    #reached = false;

    constructor(options: ConnectionOptions = {}) {
        const place = platform.place(options.profile);
        const url = options.url ?? place.url ?? LOCAL;
        if (url.startsWith("unix:")) {
            throw invalid("url", `${url} is a socket, which cannot be reached from here`, "give the server's http:// or https:// address");
        }
        if (!URL.canParse(url) || !/^https?:/.test(url)) {
            throw invalid("url", `${JSON.stringify(url)} is not the URL of a server`, `give one such as ${LOCAL}`);
        }
        this.url = url.replace(/\/+$/, "");
        // A key that was set for a server goes to no other.
        const meant = place.url === undefined || place.url === url;
        this.#key = options.apiKey ?? (meant ? place.apiKey : undefined);
        this.requestTimeout = options.requestTimeout ?? 60;
        this.reconnect = options.reconnect ?? 30;
        if (this.#key !== undefined && !/^[\x21-\x7e]+$/.test(this.#key)) {
            throw invalid("apiKey", "the key has characters that no key has", "give one of atl_ and 64 hex digits");
        }
    }

    /** The client of some options. */
    static of(options: ConnectionOptions = {}): Client {
        return options.client ?? new Client(options);
    }

    /** Whether it has a key. */
    get hasKey(): boolean {
        return this.#key !== undefined;
    }

    /** The address of a route. */
    address(path: string, query: Query = {}): string {
        const said = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
        const words = new URLSearchParams(said.map(([name, value]) => [name, String(value)]));
        return `${this.url}${path}${said.length > 0 ? `?${words}` : ""}`;
    }

    /** Sends a request; the JSON of its answer. */
    async json<T>(method: string, path: string, asked: Asked = {}): Promise<T> {
        return await this.request(method, path, asked, async (response) => await this.parsed<T>(response, `${method} ${path}`));
    }

    /**
     * The JSON of an answer.
     * @internal
     */
    async parsed<T>(response: Response, what: string): Promise<T> {
        const text = await response.text();
        try {
            return (text === "" ? undefined : JSON.parse(text)) as T;
        } catch {
            throw new AtollError(`${what}: the answer is not JSON`, {
                code: "UNEXPECTED_ANSWER",
                category: "internal",
                remedy: `see that ${this.url} is an Atoll server`,
            });
        }
    }

    /** Sends a request; what is made of its answer. An answer that breaks off is as good as none. */
    async request<T>(method: string, path: string, asked: Asked, take: (response: Response) => Promise<T>): Promise<T> {
        const what = `${method} ${path}`;
        const deadline = new Deadline(what, asked.requestTimeout ?? this.requestTimeout, asked.signal);
        let [begin, lost, anew] = [Date.now(), false, 0];
        try {
            for (let tries = 0; ; tries++) {
                const at = Date.now();
                try {
                    const response = await this.#fetch(method, path, asked, deadline.signal);
                    if (!response.ok) {
                        throw await refused(response, what);
                    }
                    return await take(response);
                } catch (thrown) {
                    deadline.check();
                    const error = this.broken(thrown);
                    if (lost && error instanceof AtollError && error.code === asked.done) {
                        return undefined as T;
                    }
                    lost ||= error instanceof ConnectionError && error.sent;
                    if (Date.now() - at > UNDER_WAY && anew < ANEW) {
                        [begin, tries, anew] = [Date.now(), 0, anew + 1];
                    }
                    const wait = this.#patience(error, asked, method, tries, begin);
                    if (wait === undefined) {
                        throw error;
                    }
                    await deadline.sleep(wait);
                }
            }
        } finally {
            deadline.end();
        }
    }

    /**
     * Server-sent events of a route. A stream that breaks off is opened again, `after` the last event that had an id;
     * `resumed` is called then. Whoever knows the last event stops reading.
     */
    async *events(
        path: string,
        asked: { query?: Query; after?: string; signal?: AbortSignal; opened?: () => void; resumed?: () => ServerEvent | undefined },
    ): AsyncGenerator<ServerEvent> {
        let { after } = asked;
        const patience = new Patience(this.reconnect * 1000);
        do {
            const quiet = new Silence(silence.most, asked.signal);
            try {
                // The deadline is for the beginning of the answer; what follows has its own.
                const query = { ...asked.query, after };
                const response = await this.request("GET", path, { query, signal: quiet.signal }, async (it) => it);
                asked.opened?.();
                for await (const event of serverEvents(response, () => quiet.heard())) {
                    after = event.id ?? after;
                    patience.progress();
                    if (event.name === "error") {
                        throw told(event.data) ?? new AtollError(event.data, { code: "INTERNAL", category: "internal" });
                    }
                    if (event.name !== "ping") {
                        yield event;
                    }
                }
            } catch (thrown) {
                asked.signal?.throwIfAborted();
                const error = quiet.lasted ? undefined : this.broken(thrown);
                // Opening has tried again as long as makes sense.
                if (error && !(error instanceof ConnectionError && error.sent)) {
                    throw error;
                }
            } finally {
                quiet.end();
            }
            asked.signal?.throwIfAborted();
            const missed = asked.resumed?.();
            if (missed) {
                yield missed;
            }
        } while (await patience.pause());
        asked.signal?.throwIfAborted();
        throw new ConnectionError(`GET ${path}: the stream breaks off again and again`, {
            sent: true,
            remedy: "see what is between here and the server",
        });
    }

    async #fetch(method: string, path: string, asked: Asked, signal: AbortSignal): Promise<Response> {
        const headers = new Headers(asked.headers);
        if (this.#key !== undefined) {
            headers.set("x-api-key", this.#key);
        }
        // A body that is read later can still be given up when the deadline of its beginning is over.
        const both = asked.signal ? AbortSignal.any([signal, asked.signal]) : signal;
        const init: RequestInit & { duplex?: "half" } = { method, headers, signal: both };
        if (asked.json !== undefined) {
            headers.set("content-type", "application/json");
            init.body = JSON.stringify(asked.json);
        } else if (asked.body) {
            init.body = asked.body();
            init.duplex = "half";
        }
        const response = await fetch(this.address(path, asked.query), init);
        this.#reached ||= !AWAY.includes(response.status);
        return response;
    }

    /** @internal What a broken connection is called; other failures are what they are. */
    broken(thrown: unknown): unknown {
        if (!(thrown instanceof TypeError)) {
            return thrown;
        }
        const cause = (thrown.cause ?? thrown) as { code?: string; message?: string };
        const untrusted = UNTRUSTED.test(cause.code ?? "");
        const sent = !untrusted && !UNSENT.has(cause.code ?? "");
        const why = cause.message || cause.code || "the connection failed";
        return new ConnectionError(sent ? `${this.url}: the connection broke off: ${why}` : `${this.url} cannot be reached: ${why}`, {
            sent,
            remedy: untrusted ? TRUST : typeof document === "undefined" ? LOOK : LOOK_FROM_A_PAGE,
            cause: thrown,
        });
    }

    /** How long to wait before the request is said again; nothing if it must not be. */
    #patience(error: unknown, asked: Asked, method: string, tries: number, begin: number): number | undefined {
        const repeat = asked.repeat ?? (method === "GET" ? "always" : "unsent");
        if (!(error instanceof AtollError) || repeat === "never") {
            return undefined;
        }
        // It was refused before it did anything.
        if (error.code === "RATE_LIMITED") {
            return Math.max(error.retryAfter ?? 1, 0.1) * 1000;
        }
        const away = error.code === "UNEXPECTED_ANSWER" && AWAY.includes(error.status ?? 0);
        if (!away && !(error instanceof ConnectionError)) {
            return undefined;
        }
        const sent = !(error instanceof ConnectionError) || error.sent;
        const patient = this.#reached ? Date.now() - begin < this.reconnect * 1000 : tries < FIRST;
        return patient && (repeat === "always" || !sent) ? backoff(tries) : undefined;
    }
}
