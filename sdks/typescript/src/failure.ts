/** Turns error responses into exceptions. */

import { AtollError, type ErrorInit } from "./error.js";
import type { Category } from "./generated/api.js";
import { errorClasses } from "./generated/errors.js";

/** The body of an error response. The types are not known, as it may come from another server. */
interface ErrorBody {
    error?: unknown;
    code?: unknown;
    category?: unknown;
    remedy?: unknown;
    request_id?: unknown;
    details?: unknown;
    retry_after?: unknown;
}

/** Remedies that name calls of this SDK, for codes whose remedy from the server is about the HTTP API. */
const REMEDIES: Readonly<Record<string, string>> = {
    MISSING_API_KEY: "set ATOLL_API_KEY, or give apiKey; admin.key of the data directory has the first key",
    INVALID_API_KEY: "check ATOLL_API_KEY, apiKey or the profile: the key may belong to another server",
    SANDBOX_NOT_FOUND: "Sandbox.list() lists yours",
    SANDBOX_STOPPED: "call start() of the sandbox first",
    SANDBOX_PAUSED: "call resume() of the sandbox first",
    TERMINAL_NOT_FOUND: "pty.list() of the sandbox lists its terminals",
    EXEC_NOT_FOUND: "commands.list() of the sandbox lists its commands, except the oldest of those that ended",
    SANDBOX_FAILED: "call kill() of the sandbox and create another",
    NO_CAPACITY: "try again later, or stop, pause or kill sandboxes",
    DISK_FULL: "delete files or sandboxes that are not needed, or give the sandbox more with update({ diskMB })",
    STDIN_CLOSED: "run the command with background: true and openStdin: true",
    PAYLOAD_TOO_LARGE: "send less at once; files.write() of the sandbox takes files of any size",
    RATE_LIMITED: "wait retryAfter seconds and send fewer requests, or have the server's operator raise rate-limit",
    SESSION_NOT_FOUND: "Sandbox.list() lists sandboxes that are not deleted",
    TEMPLATE_NOT_FOUND: "`atoll template ls` lists the templates of the server",
    KEY_NOT_FOUND: "`atoll key ls` lists the keys of the org",
    ORG_NOT_FOUND: "`atoll org ls` lists the orgs",
    METHOD_NOT_ALLOWED: "the server's version may be older than this SDK: update the server",
    UNSUPPORTED_MEDIA_TYPE: "check what is between this program and the server: it changes requests",
    INVALID_TICKET: "try again: a ticket is valid once and for 30 seconds",
};

/** Options of this SDK for fields of the API, if their names differ. */
const OPTIONS: Readonly<Record<string, string>> = { envs: "env", templateID: "template", cmd: "command" };

/** Terms of the HTTP API and of JSON, which do not help the user of an SDK. */
const HTTP = /\b(?:GET|POST|PUT|PATCH|DELETE) |…\/|\bheader\b|X-API-Key|Retry-After|"\w+"|\bJSON\b|\bquery\b/;

const text = (value: unknown): string | undefined => (typeof value === "string" ? value : undefined);

/** Creates an error of the code's class. */
export function failure(message: string, facts: ErrorInit): AtollError {
    const known = errorClasses as Record<string, typeof AtollError>;
    const Class = Object.hasOwn(known, facts.code) ? (known[facts.code] ?? AtollError) : AtollError;
    return new Class(message, facts);
}

/** Parses an error response; `undefined` if the body is not one of Atoll's. */
export function parseError(body: string, status?: number): AtollError | undefined {
    let fields: ErrorBody;
    try {
        fields = JSON.parse(body) as ErrorBody;
    } catch {
        return undefined;
    }
    const [message, code] = [text(fields?.error), text(fields?.code)];
    if (message === undefined || code === undefined) {
        return undefined;
    }
    return failure(message, {
        code,
        category: (text(fields.category) ?? "internal") as Category,
        remedy: remedy(code, text(fields.remedy), (fields.details ?? {}) as Record<string, string>),
        requestId: text(fields.request_id),
        details: (fields.details ?? {}) as Record<string, string>,
        status,
        retryAfter: typeof fields.retry_after === "number" ? fields.retry_after : undefined,
    });
}

/** The remedy of an error response, in terms of this SDK; the server's remedies are for users of the HTTP API. */
function remedy(code: string, ofServer: string | undefined, details: Readonly<Record<string, string>>): string | undefined {
    if (!ofServer) {
        return undefined;
    }
    if (Object.hasOwn(REMEDIES, code)) {
        return REMEDIES[code];
    }
    if (code === "QUOTA_EXCEEDED" && details.max !== undefined) {
        return "kill() or stop() a sandbox, or have the limit of the org raised";
    }
    const isForHttp = HTTP.test(ofServer);
    if (code === "NOT_FOUND" && isForHttp) {
        return "check the URL of the server; its version may be older than this SDK";
    }
    if (code === "INVALID_REQUEST" && details.field !== undefined) {
        return fieldRemedy(details.field, ofServer, details);
    }
    return isForHttp ? undefined : ofServer;
}

function fieldRemedy(field: string, ofServer: string, { expected = "", got }: Readonly<Record<string, string>>): string | undefined {
    const option = (Object.hasOwn(OPTIONS, field) && OPTIONS[field]) || field;
    if (/ (field|query parameter)$/.test(expected)) {
        return `leave out ${option}: the server's version may be older than this SDK`;
    }
    if (!HTTP.test(ofServer)) {
        return option === field ? ofServer : `${option}: ${ofServer}`;
    }
    if (field === "body") {
        return undefined;
    }
    if (expected) {
        return `give ${expected} as ${option}`;
    }
    return got === "nothing" ? `give ${option}` : `see the reference of this SDK for ${option}`;
}

/** The error of an unsuccessful response. */
export async function errorFromResponse(response: Response, what: string): Promise<AtollError> {
    const body = await response.text();
    const known = parseError(body, response.status);
    if (known) {
        return known;
    }
    const waits = Number(response.headers.get("retry-after") ?? Number.NaN);
    return new AtollError(`${what}: the response with status ${response.status} is not one of Atoll's API`, {
        code: "UNEXPECTED_ANSWER",
        category: response.status >= 500 ? "provider_unavailable" : "internal",
        remedy: "check that the URL is that of an Atoll server, and the proxies in between",
        status: response.status,
        retryAfter: Number.isFinite(waits) ? waits : undefined,
    });
}

/** The error for an invalid argument. */
export function invalid(field: string, message: string, remedy: string): AtollError {
    return failure(message, { code: "INVALID_REQUEST", category: "validation", remedy, details: { field } });
}
