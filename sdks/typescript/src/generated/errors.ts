// Made from openapi/v1.json and docs/reference/errors.md by scripts/generate.mjs: do not change it here.

import { AtollError, UnauthenticatedError } from "../error.js";

/** A field is missing, of the wrong type or out of range. */
export class InvalidRequestError extends AtollError {}

/** The template of a create is not known. */
export class UnknownTemplateError extends AtollError {}

/** The user is not known in the sandbox. */
export class UnknownUserError extends AtollError {}

/** The working directory is not there. */
export class CwdNotFoundError extends AtollError {}

/** The program is not there or cannot be run. */
export class ProgramNotFoundError extends AtollError {}

/** Neither a regular file nor a link to one. */
export class NotAFileError extends AtollError {}

/** Not a directory. */
export class NotADirectoryError extends AtollError {}

/** The body is not of the kind this route takes. */
export class UnsupportedMediaTypeError extends AtollError {}

/** The file has no such part. */
export class RangeNotSatisfiableError extends AtollError {}

/** The request is for a host that we do not serve. */
export class MisdirectedRequestError extends AtollError {}

/** There is no such method here. */
export class MethodNotAllowedError extends AtollError {}

/** The request is too large. */
export class PayloadTooLargeError extends AtollError {}

/** The request has no API key. */
export class MissingApiKeyError extends UnauthenticatedError {}

/** The API key is unknown, expired or revoked. */
export class InvalidApiKeyError extends UnauthenticatedError {}

/** The ticket is unknown, used or expired. */
export class InvalidTicketError extends UnauthenticatedError {}

/** The key's scope, the origin of the page or the permissions of a file refuse it. */
export class PermissionDeniedError extends AtollError {}

/** No such route. */
export class NotFoundError extends AtollError {}

/** No such key. */
export class KeyNotFoundError extends AtollError {}

/** No such org. */
export class OrgNotFoundError extends AtollError {}

/** No such session in the history. */
export class SessionNotFoundError extends AtollError {}

/** No such terminal. */
export class TerminalNotFoundError extends AtollError {}

/** No such sandbox. */
export class SandboxNotFoundError extends AtollError {}

/** No such file. */
export class FileNotFoundError extends AtollError {}

/** No such command. */
export class ExecNotFoundError extends AtollError {}

/** No such template. */
export class TemplateNotFoundError extends AtollError {}

/** It is already there, or in use. */
export class ConflictError extends AtollError {}

/** The file is already there. */
export class FileExistsError extends AtollError {}

/** The sandbox does not run. */
export class SandboxStoppedError extends AtollError {}

/** The sandbox is paused. */
export class SandboxPausedError extends AtollError {}

/** The command's standard input is closed, or was never open. */
export class StdinClosedError extends AtollError {}

/** The same idempotency key came with another request. */
export class IdempotencyMismatchError extends AtollError {}

/** The sandbox could not be made or was lost. */
export class SandboxFailedError extends AtollError {}

/** The key sends more requests than it may. */
export class RateLimitedError extends AtollError {}

/** A limit of the sandbox or the org is reached. */
export class QuotaExceededError extends AtollError {}

/** Something of ours failed. */
export class InternalError extends AtollError {}

/** This host lacks what was asked for. */
export class UnsupportedByHostError extends AtollError {}

/** The machine cannot take more. */
export class NoCapacityError extends AtollError {}

/** Somebody inside did not answer in time. */
export class ProviderTimeoutError extends AtollError {}

/** The disk is full. */
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
