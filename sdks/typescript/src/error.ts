/** Base classes of errors. `generated/errors.ts` has a class for each error code. */

import type { CommandResult } from "./command-handle.js";
import type { Category } from "./generated/api.js";

/** Properties of a new error. */
export interface ErrorInit {
    code: string;
    category: Category;
    remedy?: string | undefined;
    requestId?: string | undefined;
    details?: Record<string, string>;
    status?: number | undefined;
    retryAfter?: number | undefined;
    cause?: unknown;
}

/** Base class of all errors. Each error code of the server has a subclass; unknown codes use this class. */
export class AtollError extends Error {
    /** Error code, such as `SANDBOX_NOT_FOUND`. */
    readonly code: string;
    /** Kind of failure. */
    readonly category: Category;
    /** How to fix the problem, if known. */
    readonly remedy: string | undefined;
    /** The request's id in the server's log. */
    readonly requestId: string | undefined;
    /** Values for programs, such as the `field` of a request or the `state` of a sandbox. */
    readonly details: Record<string, string>;
    /** The HTTP status of an error response. */
    readonly status: number | undefined;
    /** Seconds to wait before a retry, for temporary failures. */
    readonly retryAfter: number | undefined;

    constructor(message: string, facts: ErrorInit) {
        const full = facts.remedy ? `${message} (${facts.remedy})` : message;
        super(full, facts.cause === undefined ? undefined : { cause: facts.cause });
        this.name = new.target.name;
        this.code = facts.code;
        this.category = facts.category;
        this.remedy = facts.remedy;
        this.requestId = facts.requestId;
        this.details = facts.details ?? {};
        this.status = facts.status;
        this.retryAfter = facts.retryAfter;
    }
}

/** The server accepts no credential of the request: it has no API key, or one that is unknown, expired or revoked. */
export class UnauthenticatedError extends AtollError {}

/** The server cannot be reached, or the connection broke. */
export class ConnectionError extends AtollError {
    /** Whether the request may have been sent; if so, it may have taken effect. */
    readonly sent: boolean;

    constructor(message: string, facts: { sent: boolean; remedy?: string; cause?: unknown }) {
        super(message, { ...facts, code: "UNREACHABLE", category: "provider_unavailable" });
        this.sent = facts.sent;
    }
}

/** A call exceeded its timeout; the message names the operation. */
export class TimeoutError extends AtollError {
    constructor(message: string, remedy: string) {
        super(message, { code: "TIMED_OUT", category: "provider_timeout", remedy });
    }
}

/** A command was ended by its timeout. */
export class CommandTimeoutError extends AtollError {
    /** The command's output until then. */
    readonly result: CommandResult;

    constructor(cmd: string, result: CommandResult) {
        const name = cmd.length > 80 ? `${cmd.slice(0, 80)}…` : cmd;
        super(`${JSON.stringify(name)} was ended by its timeout`, {
            code: "COMMAND_TIMEOUT",
            category: "provider_timeout",
            remedy: "give it a longer timeout; 0 disables it",
            details: { exec_id: result.execID },
        });
        this.result = result;
    }
}

/** The operation is not supported in this environment, such as a local port in a browser. */
export class UnsupportedError extends AtollError {
    constructor(message: string, remedy: string) {
        super(message, { code: "UNSUPPORTED", category: "validation", remedy });
    }
}
