/** What every failure has in common. Codes have classes of their own in `generated/errors.ts`. */

import type { CommandResult } from "./command-handle.js";
import type { Category } from "./generated/api.js";

/** What is known of a failure. */
export interface FailureFacts {
    code: string;
    category: Category;
    remedy?: string | undefined;
    requestId?: string | undefined;
    details?: Record<string, string>;
    status?: number | undefined;
    retryAfter?: number | undefined;
    cause?: unknown;
}

/** A failure. Each code that a server can tell has a class below this one; a code that is not known here is of this class. */
export class AtollError extends Error {
    /** Such as `SANDBOX_NOT_FOUND`. */
    readonly code: string;
    /** What kind of failure it is. */
    readonly category: Category;
    /** What to do about it. */
    readonly remedy: string | undefined;
    /** What the server's log calls the request. */
    readonly requestId: string | undefined;
    /** Values for programs, such as the `field` of a request or the `state` of a sandbox. */
    readonly details: Record<string, string>;
    /** The HTTP status, if there was an answer. */
    readonly status: number | undefined;
    /** When to try again, in seconds, for what passes by itself. */
    readonly retryAfter: number | undefined;

    constructor(message: string, facts: FailureFacts) {
        const told = facts.remedy ? `${message} (${facts.remedy})` : message;
        super(told, facts.cause === undefined ? undefined : { cause: facts.cause });
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

/** The server cannot be reached, or the connection to it broke off. */
export class ConnectionError extends AtollError {
    /** The request may have arrived: whether it did something is not known. */
    readonly sent: boolean;

    constructor(message: string, facts: { sent: boolean; remedy?: string; cause?: unknown }) {
        super(message, { ...facts, code: "UNREACHABLE", category: "provider_unavailable" });
        this.sent = facts.sent;
    }
}

/** A deadline of this library's came first; the message says of what. */
export class TimeoutError extends AtollError {
    constructor(message: string, remedy: string) {
        super(message, { code: "TIMED_OUT", category: "provider_timeout", remedy });
    }
}

/** A command was ended by its timeout. */
export class CommandTimeoutError extends AtollError {
    /** Its output until then. */
    readonly result: CommandResult;

    constructor(cmd: string, result: CommandResult) {
        const name = cmd.length > 80 ? `${cmd.slice(0, 80)}…` : cmd;
        super(`${JSON.stringify(name)} was ended by its timeout`, {
            code: "COMMAND_TIMEOUT",
            category: "provider_timeout",
            remedy: "give it a longer timeout; 0 is none",
            details: { exec_id: result.execID },
        });
        this.result = result;
    }
}

/** What was asked for is not there in this environment, such as a local port in a browser. */
export class UnsupportedError extends AtollError {
    constructor(message: string, remedy: string) {
        super(message, { code: "UNSUPPORTED", category: "validation", remedy });
    }
}
