"""Exceptions: `AtollError`, and a subclass for each code of the API's error table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models import CommandResult


class AtollError(Exception):
    """Base class of all errors of this package.

    An error code that this release does not know is raised as an `AtollError` itself.

    Attributes:
        message: One-line description.
        code: Error code, such as `SANDBOX_NOT_FOUND`.
        category: Kind of failure: `validation`, `auth`, `not_found`, `conflict`, `quota`, `rate_limit`,
            `provider_unavailable`, `provider_timeout` or `internal`.
        remedy: How to fix the problem, if known.
        request_id: The request's id in the server's log.
        status: The HTTP status of an error response.
        details: Values for programs, such as the `field` of a request or the `state` of a sandbox.
        retry_after: Seconds to wait before a retry, for temporary failures.
    """

    code: str = "UNKNOWN"
    category: str = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        category: str | None = None,
        remedy: str | None = None,
        request_id: str | None = None,
        status: int | None = None,
        details: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.category = category or type(self).category
        self.remedy = remedy
        self.request_id = request_id
        self.status = status
        self.details = dict(details or {})
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # The keywords of the constructor are its state: errors cross process boundaries.
        return (type(self), (self.message,), self.__dict__)


class ConnectionFailed(AtollError, ConnectionError):
    """The server cannot be reached, or the connection broke during a request that cannot be retried safely."""

    code = "CONNECTION_FAILED"
    category = "provider_unavailable"


class DeadlineExceeded(AtollError, TimeoutError):
    """A call exceeded its timeout; the message names the operation."""

    code = "DEADLINE_EXCEEDED"
    category = "provider_timeout"


class UnexpectedAnswer(AtollError):
    """The response is not one of Atoll's API."""

    code = "UNEXPECTED_ANSWER"


class InvalidConfiguration(AtollError):
    """The URL, the API key or the profile is invalid."""

    code = "INVALID_CONFIGURATION"
    category = "validation"


class CommandFailed(AtollError):
    """A command run with `check=True` has an exit code other than 0. `result` has its output, `details` its
    `exit_code` and `exec_id`."""

    code = "COMMAND_FAILED"
    category = "validation"
    result: CommandResult | None = None


class CommandTimeout(AtollError, TimeoutError):
    """A command was ended by its timeout. `result` has its output until then."""

    code = "COMMAND_TIMEOUT"
    category = "provider_timeout"
    result: CommandResult | None = None


class InvalidRequest(AtollError):
    """A field is missing, of the wrong type or out of range."""

    code = "INVALID_REQUEST"
    category = "validation"


class UnknownTemplate(AtollError):
    """The template of a create request does not exist."""

    code = "UNKNOWN_TEMPLATE"
    category = "validation"


class UnknownUser(AtollError):
    """The user does not exist in the sandbox."""

    code = "UNKNOWN_USER"
    category = "validation"


class CwdNotFound(AtollError):
    """The working directory does not exist."""

    code = "CWD_NOT_FOUND"
    category = "validation"


class ProgramNotFound(AtollError):
    """The program does not exist or cannot be executed."""

    code = "PROGRAM_NOT_FOUND"
    category = "validation"


class NotAFile(AtollError):
    """The path is not a regular file or a link to one."""

    code = "NOT_A_FILE"
    category = "validation"


class NotADirectory(AtollError):
    """The path is not a directory."""

    code = "NOT_A_DIRECTORY"
    category = "validation"


class UnsupportedMediaType(AtollError):
    """The route does not accept the body's Content-Type."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    category = "validation"


class RangeNotSatisfiable(AtollError):
    """The requested range is outside the file."""

    code = "RANGE_NOT_SATISFIABLE"
    category = "validation"


class MisdirectedRequest(AtollError):
    """This server does not serve the requested host name."""

    code = "MISDIRECTED_REQUEST"
    category = "validation"


class MethodNotAllowed(AtollError):
    """The route does not support this method."""

    code = "METHOD_NOT_ALLOWED"
    category = "validation"


class PayloadTooLarge(AtollError):
    """The request body is too large."""

    code = "PAYLOAD_TOO_LARGE"
    category = "quota"


class Unauthenticated(AtollError):
    """The server accepts no credential of the request. Base class of the three errors that follow."""

    code = "UNAUTHENTICATED"
    category = "auth"


class MissingApiKey(Unauthenticated):
    """The request has no API key."""

    code = "MISSING_API_KEY"


class InvalidApiKey(Unauthenticated):
    """The API key is unknown, expired or revoked."""

    code = "INVALID_API_KEY"


class InvalidTicket(Unauthenticated):
    """The ticket is unknown, used or expired."""

    code = "INVALID_TICKET"


class PermissionDenied(AtollError):
    """The key's scope, the request's origin or the permissions of a file do not allow the operation."""

    code = "PERMISSION_DENIED"
    category = "auth"


class NotFound(AtollError):
    """The route does not exist."""

    code = "NOT_FOUND"
    category = "not_found"


class KeyNotFound(AtollError):
    """The API key does not exist."""

    code = "KEY_NOT_FOUND"
    category = "not_found"


class OrgNotFound(AtollError):
    """The org does not exist."""

    code = "ORG_NOT_FOUND"
    category = "not_found"


class SessionNotFound(AtollError):
    """The session does not exist, or its history was deleted."""

    code = "SESSION_NOT_FOUND"
    category = "not_found"


class TerminalNotFound(AtollError):
    """The terminal does not exist."""

    code = "TERMINAL_NOT_FOUND"
    category = "not_found"


class SandboxNotFound(AtollError):
    """The sandbox does not exist or was deleted."""

    code = "SANDBOX_NOT_FOUND"
    category = "not_found"


class FileNotFound(AtollError):
    """The file does not exist."""

    code = "FILE_NOT_FOUND"
    category = "not_found"


class ExecNotFound(AtollError):
    """The command does not exist."""

    code = "EXEC_NOT_FOUND"
    category = "not_found"


class TemplateNotFound(AtollError):
    """The template does not exist."""

    code = "TEMPLATE_NOT_FOUND"
    category = "not_found"


class Conflict(AtollError):
    """The resource already exists, is in use, or is in a state that does not allow the operation."""

    code = "CONFLICT"
    category = "conflict"


class FileExists(AtollError):
    """The file already exists."""

    code = "FILE_EXISTS"
    category = "conflict"


class SandboxStopped(AtollError):
    """The sandbox is stopped."""

    code = "SANDBOX_STOPPED"
    category = "conflict"


class SandboxPaused(AtollError):
    """The sandbox is paused."""

    code = "SANDBOX_PAUSED"
    category = "conflict"


class StdinClosed(AtollError):
    """The command's standard input is closed or was never connected."""

    code = "STDIN_CLOSED"
    category = "conflict"


class IdempotencyMismatch(AtollError):
    """The idempotency key was used before with a different request."""

    code = "IDEMPOTENCY_MISMATCH"
    category = "conflict"


class SandboxFailed(AtollError):
    """The sandbox could not be created or was lost."""

    code = "SANDBOX_FAILED"
    category = "not_found"


class RateLimited(AtollError):
    """The key exceeds its limit of requests per second."""

    code = "RATE_LIMITED"
    category = "rate_limit"


class QuotaExceeded(AtollError):
    """A limit of the sandbox or the org is reached."""

    code = "QUOTA_EXCEEDED"
    category = "rate_limit"


class Internal(AtollError):
    """Internal server error."""

    code = "INTERNAL"
    category = "internal"


class UnsupportedByHost(AtollError):
    """This host lacks a feature that the request needs."""

    code = "UNSUPPORTED_BY_HOST"
    category = "provider_unavailable"


class NoCapacity(AtollError):
    """No capacity left on this host."""

    code = "NO_CAPACITY"
    category = "provider_unavailable"


class ProviderTimeout(AtollError):
    """A process in the sandbox did not respond in time."""

    code = "PROVIDER_TIMEOUT"
    category = "provider_timeout"


class DiskFull(AtollError):
    """No disk space left."""

    code = "DISK_FULL"
    category = "quota"


def classes(base: type[AtollError] = AtollError) -> Iterator[type[AtollError]]:
    """All subclasses, each before its own subclasses."""
    for kind in base.__subclasses__():
        yield kind
        yield from classes(kind)


_BY_CODE = {kind.code: kind for kind in classes()}


#: Remedies that name calls of this SDK, for codes whose remedy from the server is about the HTTP API.
_REMEDIES = {
    "MISSING_API_KEY": "set ATOLL_API_KEY, or use Client(api_key=…); admin.key of the data directory has the first key",
    "INVALID_API_KEY": "check ATOLL_API_KEY, Client(api_key=…) or the profile: it may be another server's key",
    "SANDBOX_NOT_FOUND": "Sandbox.list() lists yours",
    "SANDBOX_STOPPED": "call start() of the sandbox first",
    "SANDBOX_PAUSED": "call resume() of the sandbox first",
    "TERMINAL_NOT_FOUND": "pty.list() of the sandbox lists its terminals",
    "EXEC_NOT_FOUND": "commands.list() of the sandbox lists its commands, except the oldest of those that ended",
    "SANDBOX_FAILED": "call kill() of the sandbox and create another",
    "NO_CAPACITY": "try again later, or stop, pause or kill sandboxes",
    "DISK_FULL": "delete files or sandboxes that are not needed, or give the sandbox more with update(disk_mb=…)",
    "STDIN_CLOSED": "run the command with background=True and open_stdin=True",
    "PAYLOAD_TOO_LARGE": "send less at once; files.write() of the sandbox takes files of any size",
    "RATE_LIMITED": "wait retry_after seconds and send fewer requests, or have the operator raise rate-limit",
    "SESSION_NOT_FOUND": "Sandbox.list() lists sandboxes that are not deleted",
    "TEMPLATE_NOT_FOUND": "`atoll template ls` lists the templates of the server",
    "KEY_NOT_FOUND": "`atoll key ls` lists the keys of the org",
    "ORG_NOT_FOUND": "`atoll org ls` lists the orgs",
    "METHOD_NOT_ALLOWED": "the server's version may be older than this SDK: update the server",
    "UNSUPPORTED_MEDIA_TYPE": "check what is between this program and the server: it changes requests",
    "INVALID_TICKET": "try again: a ticket is valid once and for 30 seconds",
}

#: Parameters of this SDK for fields of the API, if they are not the same word in snake case.
_PARAMETERS = {"envs": "env", "templateID": "template", "q": "search", "cmd": "command"}

#: Terms of the HTTP API and of JSON, which do not help the user of an SDK.
_HTTP = re.compile(r'\b(?:GET|POST|PUT|PATCH|DELETE) |…/|\bheader\b|X-API-Key|Retry-After|"\w+"|\bJSON\b|\bquery\b')

_CAMEL_CASE = re.compile(r"\b[a-z]+(?:[A-Z]+[a-z]*)+\b")


def _snake_case(text: str) -> str:
    """The text with names of fields as names of parameters."""
    return _CAMEL_CASE.sub(lambda name: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name[0]).lower(), text)


def _remedy(code: str, remedy: object, details: Mapping[str, str]) -> str | None:
    """The remedy of an error response, in terms of this SDK; the server's remedies are for users of the HTTP API."""
    if not isinstance(remedy, str) or not remedy:
        return None
    if code in _REMEDIES:
        return _REMEDIES[code]
    if code == "QUOTA_EXCEEDED" and "max" in details:
        return "kill() or stop() a sandbox, or have the limit of the org raised"
    if code == "NOT_FOUND" and _HTTP.search(remedy):
        return "check the URL of the server; its version may be older than this SDK"
    if code == "INVALID_REQUEST" and "field" in details:
        return _field_remedy(details["field"], remedy, details)
    return None if _HTTP.search(remedy) else _snake_case(remedy)


def _field_remedy(field: str, remedy: str, details: Mapping[str, str]) -> str | None:
    parameter = _PARAMETERS.get(field) or _snake_case(field)
    expected = details.get("expected", "")
    if expected.endswith((" field", " query parameter")):
        return f"leave out {parameter}: the server's version may be older than this SDK"
    if not _HTTP.search(remedy):
        return _snake_case(remedy) if parameter == field else f"{parameter}: {_snake_case(remedy)}"
    if field == "body":
        return None
    if expected:
        return f"give {expected} as {parameter}"
    return f"give {parameter}" if details.get("got") == "nothing" else f"see the reference of this SDK for {parameter}"


def from_response(status: int, body: Mapping[str, Any], request_id: str | None) -> AtollError:
    """The error of an error response."""
    code = body.get("code")
    kind = _BY_CODE.get(str(code), AtollError)
    return kind(
        str(body.get("error") or f"the server answered {status}"),
        code=str(code) if code else None,
        category=body.get("category"),
        remedy=_remedy(str(code), body.get("remedy"), body.get("details") or {}),
        request_id=body.get("request_id") or request_id,
        status=status,
        details=body.get("details"),
        retry_after=body.get("retry_after"),
    )
