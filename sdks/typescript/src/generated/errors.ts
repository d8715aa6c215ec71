// Generated from openapi/v1.json and docs/reference/errors.md by scripts/generate.mjs: do not change it here.

import { AtollError, UnauthenticatedError } from "../error.js";

/** A field is missing, of the wrong type or out of range. */
export class InvalidRequestError extends AtollError {}

/** The template of a create request does not exist. */
export class UnknownTemplateError extends AtollError {}

/** The user does not exist in the sandbox. */
export class UnknownUserError extends AtollError {}

/** The working directory does not exist. */
export class CwdNotFoundError extends AtollError {}

/** The program does not exist or cannot be executed. */
export class ProgramNotFoundError extends AtollError {}

/** The path is not a regular file or a link to one. */
export class NotAFileError extends AtollError {}

/** The path is not a directory. */
export class NotADirectoryError extends AtollError {}

/** The route does not accept the body's Content-Type. */
export class UnsupportedMediaTypeError extends AtollError {}

/** The requested range is outside the file. */
export class RangeNotSatisfiableError extends AtollError {}

/** This server does not serve the requested host name. */
export class MisdirectedRequestError extends AtollError {}

/** The route does not support this method. */
export class MethodNotAllowedError extends AtollError {}

/** The request body is too large. */
export class PayloadTooLargeError extends AtollError {}

/** The request has no API key. */
export class MissingApiKeyError extends UnauthenticatedError {}

/** The API key is unknown, expired or revoked. */
export class InvalidApiKeyError extends UnauthenticatedError {}

/** The ticket is unknown, used or expired. */
export class InvalidTicketError extends UnauthenticatedError {}

/** The key's scope, the request's origin or the permissions of a file do not allow the operation. */
export class PermissionDeniedError extends AtollError {}

/** The route does not exist. */
export class NotFoundError extends AtollError {}

/** The API key does not exist. */
export class KeyNotFoundError extends AtollError {}

/** The org does not exist. */
export class OrgNotFoundError extends AtollError {}

/** The session does not exist, or its history was deleted. */
export class SessionNotFoundError extends AtollError {}

/** The terminal does not exist. */
export class TerminalNotFoundError extends AtollError {}

/** The sandbox does not exist or was deleted. */
export class SandboxNotFoundError extends AtollError {}

/** The file does not exist. */
export class FileNotFoundError extends AtollError {}

/** The command does not exist. */
export class ExecNotFoundError extends AtollError {}

/** The template does not exist. */
export class TemplateNotFoundError extends AtollError {}

/** The resource already exists, is in use, or is in a state that does not allow the operation. */
export class ConflictError extends AtollError {}

/** The file already exists. */
export class FileExistsError extends AtollError {}

/** The sandbox is stopped. */
export class SandboxStoppedError extends AtollError {}

/** The sandbox is paused. */
export class SandboxPausedError extends AtollError {}

/** The command's standard input is closed or was never connected. */
export class StdinClosedError extends AtollError {}

/** The idempotency key was used before with a different request. */
export class IdempotencyMismatchError extends AtollError {}

/** The sandbox could not be created or was lost. */
export class SandboxFailedError extends AtollError {}

/** The key exceeds its limit of requests per second. */
export class RateLimitedError extends AtollError {}

/** A limit of the sandbox or the org is reached. */
export class QuotaExceededError extends AtollError {}

/** Internal server error. */
export class InternalError extends AtollError {}

/** This host lacks a feature that the request needs. */
export class UnsupportedByHostError extends AtollError {}

/** No capacity left on this host. */
export class NoCapacityError extends AtollError {}

/** A process in the sandbox did not respond in time. */
export class ProviderTimeoutError extends AtollError {}

/** No disk space left. */
export class DiskFullError extends AtollError {}

/** The class of each code. */
export const errorClasses = {
    INVALID_REQUEST: InvalidRequestError,
    UNKNOWN_TEMPLATE: UnknownTemplateError,
    UNKNOWN_USER: UnknownUserError,
    CWD_NOT_FOUND: CwdNotFoundError,
    PROGRAM_NOT_FOUND: ProgramNotFoundError,
    NOT_A_FILE: NotAFileError,
    NOT_A_DIRECTORY: NotADirectoryError,
    UNSUPPORTED_MEDIA_TYPE: UnsupportedMediaTypeError,
    RANGE_NOT_SATISFIABLE: RangeNotSatisfiableError,
    MISDIRECTED_REQUEST: MisdirectedRequestError,
    METHOD_NOT_ALLOWED: MethodNotAllowedError,
    PAYLOAD_TOO_LARGE: PayloadTooLargeError,
    MISSING_API_KEY: MissingApiKeyError,
    INVALID_API_KEY: InvalidApiKeyError,
    INVALID_TICKET: InvalidTicketError,
    PERMISSION_DENIED: PermissionDeniedError,
    NOT_FOUND: NotFoundError,
    KEY_NOT_FOUND: KeyNotFoundError,
    ORG_NOT_FOUND: OrgNotFoundError,
    SESSION_NOT_FOUND: SessionNotFoundError,
    TERMINAL_NOT_FOUND: TerminalNotFoundError,
    SANDBOX_NOT_FOUND: SandboxNotFoundError,
    FILE_NOT_FOUND: FileNotFoundError,
    EXEC_NOT_FOUND: ExecNotFoundError,
    TEMPLATE_NOT_FOUND: TemplateNotFoundError,
    CONFLICT: ConflictError,
    FILE_EXISTS: FileExistsError,
    SANDBOX_STOPPED: SandboxStoppedError,
    SANDBOX_PAUSED: SandboxPausedError,
    STDIN_CLOSED: StdinClosedError,
    IDEMPOTENCY_MISMATCH: IdempotencyMismatchError,
    SANDBOX_FAILED: SandboxFailedError,
    RATE_LIMITED: RateLimitedError,
    QUOTA_EXCEEDED: QuotaExceededError,
    INTERNAL: InternalError,
    UNSUPPORTED_BY_HOST: UnsupportedByHostError,
    NO_CAPACITY: NoCapacityError,
    PROVIDER_TIMEOUT: ProviderTimeoutError,
    DISK_FULL: DiskFullError,
} as const;
