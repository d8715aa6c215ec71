/**
 * HTTP client: requests with deadlines and retries. Idempotent requests are retried if the connection breaks, all others
 * only if they were not sent. The error of an exceeded deadline names the request.
 */

import { Deadline, RetryPolicy, IdleWatchdog, backoff, idleTimeout } from "./deadline.js";
import { AtollError, ConnectionError } from "./error.js";
import { invalid, errorFromResponse, parseError } from "./failure.js";
import { type ServerEvent, serverEvents } from "./sse.js";
import { platform } from "./platform.js";

/** Which server to use, and how. Omitted options are taken from the environment. */
export interface ConnectionOptions {
    /** Server URL, such as `https://atoll.example`. The default is `ATOLL_URL`, then the profile, then the local server. */
    url?: string;
    /** API key. The default is `ATOLL_API_KEY`, then the profile's key. Servers without authentication need none. */
    apiKey?: string;
    /** Profile name in `atoll/config.toml` in the user's configuration directory; Node only. */
    profile?: string;
    /** Default timeout of a request, in seconds. The default is 60. */
    requestTimeout?: number;
    /** How long requests are retried while a server that responded before is unreachable, in seconds. The default is 30, enough for a restart. */
    reconnect?: number;
    /** An existing client; the other options are ignored then. */
    client?: Client;
}

/** Options of every call. */
export interface CallOptions {
    /** Timeout of the call, in seconds. */
    requestTimeout?: number;
    /** Aborts the call. */
    signal?: AbortSignal;
}

/** Selects the options of every call from options that have more. */
export function call(options: CallOptions): CallOptions {
    return { requestTimeout: options.requestTimeout, signal: options.signal };
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** Options of a request. */
export interface RequestOptions extends CallOptions {
    query?: Query;
    json?: unknown;
    /** Creates the body of each attempt. */
    body?: () => BodyInit;
    headers?: Record<string, string>;
    /** When to retry: `always` for idempotent requests, `unsent` if no part of the request was sent, or `never`. */
    repeat?: "always" | "unsent" | "never";
    /** Error code that means success in a retry, as the first attempt took effect. */
    done?: string;
}

/** The default address of `atoll serve`. */
const LOCAL = "http://127.0.0.1:8080";
/** A request that fails after this time, in milliseconds, reached a server, so its retries start again, */
const UNDER_WAY = 5_000;
/** at most this number of times. */
const ANEW = 10;
/** Maximum number of retries if the server never responded. */
const FIRST = 2;

/** Statuses with which a proxy responds when it cannot reach the server. */
const AWAY = [502, 503, 504];

/** Certificate errors: no part of the request was sent. */
const UNTRUSTED = /CERT|SELF_SIGNED|UNABLE_TO|ERR_TLS|ERR_SSL/;
/** Connection errors before any part of the request was sent. */
const UNSENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

const LOOK = "check that the server runs (atoll serve) and that ATOLL_URL is its URL";
const LOOK_FROM_A_PAGE = "check that the server runs, and was started with --cors-origin and this page's origin";
const TRUST = "set NODE_EXTRA_CA_CERTS to trust a private certificate; use http:// for a server without TLS";

/** A connection to an Atoll server. HTTP connections are reused. */
export class Client {
    /** The server's URL. */
    readonly url: string;
    /** Default timeout of a request, in seconds. */
    readonly requestTimeout: number;
    /** How long requests are retried while the server is unreachable, in seconds. */
    readonly reconnect: number;
    readonly #key: string | undefined;
    #reached = false;

    constructor(options: ConnectionOptions = {}) {
        const place = platform.place(options.profile);
        const url = options.url ?? place.url ?? LOCAL;
        if (url.startsWith("unix:")) {
            throw invalid("url", `${url} is a Unix socket, which this SDK does not support`, "give the server's http:// or https:// address");
        }
        if (!URL.canParse(url) || !/^https?:/.test(url)) {
            throw invalid("url", `${JSON.stringify(url)} is not the URL of a server`, `give one such as ${LOCAL}`);
        }
        this.url = url.replace(/\/+$/, "");
        // A key that is configured for one server is not sent to another.
        const isSameServer = place.url === undefined || place.url === url;
        this.#key = options.apiKey ?? (isSameServer ? place.apiKey : undefined);
        this.requestTimeout = options.requestTimeout ?? 60;
        this.reconnect = options.reconnect ?? 30;
        if (this.#key !== undefined && !/^[\x21-\x7e]+$/.test(this.#key)) {
            throw invalid("apiKey", "the API key has invalid characters", "use a key of the form atl_ and 64 hex digits");
        }
    }

    /** The client of the options, or a new one. */
    static of(options: ConnectionOptions = {}): Client {
        return options.client ?? new Client(options);
    }

    /** Whether the client has an API key. */
    get hasKey(): boolean {
        return this.#key !== undefined;
    }

    /** The URL of a route. */
    address(path: string, query: Query = {}): string {
        const entries = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
        const words = new URLSearchParams(entries.map(([name, value]) => [name, String(value)]));
        return `${this.url}${path}${entries.length > 0 ? `?${words}` : ""}`;
    }

    /** Sends a request and returns the JSON of the response. */
    async json<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
        return await this.request(method, path, options, async (response) => await this.parsed<T>(response, `${method} ${path}`));
    }

    /**
     * The JSON of a response.
     * @internal
     */
    async parsed<T>(response: Response, what: string): Promise<T> {
        const text = await response.text();
        try {
            return (text === "" ? undefined : JSON.parse(text)) as T;
        } catch {
            throw new AtollError(`${what}: the response is not JSON`, {
                code: "UNEXPECTED_ANSWER",
                category: "internal",
                remedy: `check whether ${this.url} is an Atoll server`,
            });
        }
    }

    /** Sends a request and returns the result of `take` for the response. A response that breaks off counts as lost. */
    async request<T>(method: string, path: string, options: RequestOptions, take: (response: Response) => Promise<T>): Promise<T> {
        const what = `${method} ${path}`;
        const deadline = new Deadline(what, options.requestTimeout ?? this.requestTimeout, options.signal);
        let [begin, lost, anew] = [Date.now(), false, 0];
        try {
            for (let tries = 0; ; tries++) {
                const at = Date.now();
                try {
                    const response = await this.#fetch(method, path, options, deadline.signal);
                    if (!response.ok) {
                        throw await errorFromResponse(response, what);
                    }
                    return await take(response);
                } catch (thrown) {
                    deadline.check();
                    const error = this.broken(thrown);
                    if (lost && error instanceof AtollError && error.code === options.done) {
                        return undefined as T;
                    }
                    lost ||= error instanceof ConnectionError && error.sent;
                    if (Date.now() - at > UNDER_WAY && anew < ANEW) {
                        [begin, tries, anew] = [Date.now(), 0, anew + 1];
                    }
                    const wait = this.#retryDelay(error, options, method, tries, begin);
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
     * Server-sent events of a route. A broken stream is opened again `after` the last event that had an id; `resumed` is
     * called then. The generator does not end by itself: the caller stops reading at the last event.
     */
    async *events(
        path: string,
        options: { query?: Query; after?: string; signal?: AbortSignal; opened?: () => void; resumed?: () => ServerEvent | undefined },
    ): AsyncGenerator<ServerEvent> {
        let { after } = options;
        const retry = new RetryPolicy(this.reconnect * 1000);
        do {
            const watchdog = new IdleWatchdog(idleTimeout.milliseconds, options.signal);
            try {
                // The deadline applies until the response begins; afterwards the idle timeout applies.
                const query = { ...options.query, after };
                const response = await this.request("GET", path, { query, signal: watchdog.signal }, async (it) => it);
                options.opened?.();
                for await (const event of serverEvents(response, () => watchdog.reset())) {
                    after = event.id ?? after;
                    retry.progress();
                    if (event.name === "error") {
                        throw parseError(event.data) ?? new AtollError(event.data, { code: "INTERNAL", category: "internal" });
                    }
                    if (event.name !== "ping") {
                        yield event;
                    }
                }
            } catch (thrown) {
                options.signal?.throwIfAborted();
                const error = watchdog.expired ? undefined : this.broken(thrown);
                // Opening the stream had retries of its own.
                if (error && !(error instanceof ConnectionError && error.sent)) {
                    throw error;
                }
            } finally {
                watchdog.end();
            }
            options.signal?.throwIfAborted();
            const missed = options.resumed?.();
            if (missed) {
                yield missed;
            }
        } while (await retry.pause());
        options.signal?.throwIfAborted();
        throw new ConnectionError(`GET ${path}: the stream broke several times`, {
            sent: true,
            remedy: "check the network and proxies between this program and the server",
        });
    }

    async #fetch(method: string, path: string, options: RequestOptions, signal: AbortSignal): Promise<Response> {
        const headers = new Headers(options.headers);
        if (this.#key !== undefined) {
            headers.set("x-api-key", this.#key);
        }
        // The caller's signal also aborts a body that is read after the deadline of the request.
        const both = options.signal ? AbortSignal.any([signal, options.signal]) : signal;
        const init: RequestInit & { duplex?: "half" } = { method, headers, signal: both };
        if (options.json !== undefined) {
            headers.set("content-type", "application/json");
            init.body = JSON.stringify(options.json);
        } else if (options.body) {
            init.body = options.body();
            init.duplex = "half";
        }
        const response = await fetch(this.address(path, options.query), init);
        this.#reached ||= !AWAY.includes(response.status);
        return response;
    }

    /** @internal Turns the error of a broken connection into a `ConnectionError`; returns other errors as they are. */
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

    /** The delay before the next attempt in milliseconds; `undefined` if there is none. */
    #retryDelay(error: unknown, options: RequestOptions, method: string, tries: number, begin: number): number | undefined {
        const repeat = options.repeat ?? (method === "GET" ? "always" : "unsent");
        if (!(error instanceof AtollError) || repeat === "never") {
            return undefined;
        }
        // The server rejected the request before it took effect.
        if (error.code === "RATE_LIMITED") {
            return Math.max(error.retryAfter ?? 1, 0.1) * 1000;
        }
        const away = error.code === "UNEXPECTED_ANSWER" && AWAY.includes(error.status ?? 0);
        if (!away && !(error instanceof ConnectionError)) {
            return undefined;
        }
        const sent = !(error instanceof ConnectionError) || error.sent;
        const mayRetry = this.#reached ? Date.now() - begin < this.reconnect * 1000 : tries < FIRST;
        return mayRetry && (repeat === "always" || !sent) ? backoff(tries) : undefined;
    }
}
