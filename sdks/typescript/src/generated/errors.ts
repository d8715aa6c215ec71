// Made from openapi/v1.json and docs/reference/errors.md by scripts/generate.mjs: do not change it here.

import { AtollError, UnauthenticatedError } from "../error.js";

/** A value is missing, of the wrong form or out of range; the message names it. */
export class InvalidRequestError extends AtollError {}

/** The template of a new sandbox is not there. */
export class UnknownTemplateError extends AtollError {}

/** The user is not known in the sandbox. */
export class UnknownUserError extends AtollError {}

/** The working directory is not there, or the user may not enter it. */
export class CwdNotFoundError extends AtollError {}

/** The program is not there or cannot be run. */
export class ProgramNotFoundError extends AtollError {}

/** The path is a directory, device, socket or FIFO. */
export class NotAFileError extends AtollError {}

/** The path, or a part of it, is not a directory. */
export class NotADirectoryError extends AtollError {}

/** The body is not called JSON. */
export class UnsupportedMediaTypeError extends AtollError {}

/** The `Range` of a download lies outside the file; `details` has its size. */
export class RangeNotSatisfiableError extends AtollError {}

/** The request is for a host name that this server does not have. */
export class MisdirectedRequestError extends AtollError {}

/** The route does not take that method. */
export class MethodNotAllowedError extends AtollError {}

/** A body that is not a file is larger than 1 MiB. */
export class PayloadTooLargeError extends AtollError {}

/** The request has no API key. */
export class MissingApiKeyError extends UnauthenticatedError {}

/** The API key is unknown, expired or revoked. */
export class InvalidApiKeyError extends UnauthenticatedError {}

/** The ticket is unknown, used or older than 30 s. */
export class InvalidTicketError extends UnauthenticatedError {}

/** The key's scope does not allow this; or the sandbox's file system refuses it: permissions, or read-only. */
export class PermissionDeniedError extends AtollError {}

/** There is no such route. */
export class NotFoundError extends AtollError {}

/** Your org has no such key, or it was revoked before. */
export class KeyNotFoundError extends AtollError {}

/** There is no such org, or it is not yours to see. */
export class OrgNotFoundError extends AtollError {}

/** There is no such session in the history. */
export class SessionNotFoundError extends AtollError {}

/** The sandbox has no such terminal. */
export class TerminalNotFoundError extends AtollError {}

/** There is no sandbox of that id. */
export class SandboxNotFoundError extends AtollError {}

/** There is no such file in the sandbox. */
export class FileNotFoundError extends AtollError {}

/** The sandbox has no command of that id, pid or tag; the oldest of those that ended are forgotten. */
export class ExecNotFoundError extends AtollError {}

/** There is no template of that name. */
export class TemplateNotFoundError extends AtollError {}

/** It is there already, in use, or not empty; or a helper was killed inside. */
export class ConflictError extends AtollError {}

/** The file is there already. */
export class FileExistsError extends AtollError {}

/** The sandbox has no processes; its files are there. */
export class SandboxStoppedError extends AtollError {}

/** All processes of the sandbox stand still. */
export class SandboxPausedError extends AtollError {}

/** The command's standard input was closed, or was never open. */
export class StdinClosedError extends AtollError {}

/** The same idempotency key came before with another request. */
export class IdempotencyMismatchError extends AtollError {}

/** The sandbox could not be made or was lost. */
export class SandboxFailedError extends AtollError {}

/** The key sends more requests a second than the server's `--rate-limit`. */
export class RateLimitedError extends AtollError {}

/** A limit is reached: the org's number of sandboxes at once (`details` has `max`); or the sandbox's number of processes, 256 commands, 20 terminals or 64 watches at once; or too much was asked for at once. */
export class QuotaExceededError extends AtollError {}

/** Something of Atoll's own failed; the message names the step. */
export class InternalError extends AtollError {}

/** This machine lacks what was asked for; the message names the feature. */
export class UnsupportedByHostError extends AtollError {}

/** The machine cannot take more. */
export class NoCapacityError extends AtollError {}

/** Somebody inside did not answer in time. */
export class ProviderTimeoutError extends AtollError {}

/** The disk of the data directory is full or down to the host's reserve, or the sandbox's own limit is reached. */
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
