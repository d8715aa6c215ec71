/** An answer that tells of a failure, as the error that is thrown. */

import { AtollError, type FailureFacts } from "./error.js";
import type { Category } from "./generated/api.js";
import { errorClasses } from "./generated/errors.js";

/** What a body that tells of a failure may have; another server's may be anything. */
interface Told {
    error?: unknown;
    code?: unknown;
    category?: unknown;
    remedy?: unknown;
    request_id?: unknown;
    details?: unknown;
    retry_after?: unknown;
}

/** Remedies in words of this SDK, for codes whose remedy from the server is about the HTTP API. */
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
};

const text = (value: unknown): string | undefined => (typeof value === "string" ? value : undefined);

/** The error of a code's class. */
export function failure(message: string, facts: FailureFacts): AtollError {
    const known = errorClasses as Record<string, typeof AtollError>;
    const Class = Object.hasOwn(known, facts.code) ? (known[facts.code] ?? AtollError) : AtollError;
    return new Class(message, facts);
}

/** A failure as a body tells of it; nothing if it is none of ours. */
export function told(body: string, status?: number): AtollError | undefined {
    let said: Told;
    try {
        said = JSON.parse(body) as Told;
    } catch {
        return undefined;
    }
    const [message, code] = [text(said?.error), text(said?.code)];
    if (message === undefined || code === undefined) {
        return undefined;
    }
    return failure(message, {
        code,
        category: (text(said.category) ?? "internal") as Category,
        remedy: remedy(code, text(said.remedy)),
        requestId: text(said.request_id),
        details: (said.details ?? {}) as Record<string, string>,
        status,
        retryAfter: typeof said.retry_after === "number" ? said.retry_after : undefined,
    });
}

/** What to do, in words of this SDK if it has any. */
function remedy(code: string, ofServer: string | undefined): string | undefined {
    return ofServer !== undefined && Object.hasOwn(REMEDIES, code) ? REMEDIES[code] : ofServer;
}

/** The error of an answer that is not a success. */
export async function refused(response: Response, what: string): Promise<AtollError> {
    const body = await response.text();
    const known = told(body, response.status);
    if (known) {
        return known;
    }
    const waits = Number(response.headers.get("retry-after") ?? Number.NaN);
    return new AtollError(`${what}: the answer is ${response.status} and not one of Atoll's`, {
        code: "UNEXPECTED_ANSWER",
        category: response.status >= 500 ? "provider_unavailable" : "internal",
        remedy: "see that the URL is that of an Atoll server, and what is between",
        status: response.status,
        retryAfter: Number.isFinite(waits) ? waits : undefined,
    });
}

/** What the caller said cannot be. */
export function invalid(field: string, message: string, remedy: string): AtollError {
    return failure(message, { code: "INVALID_REQUEST", category: "validation", remedy, details: { field } });
}
