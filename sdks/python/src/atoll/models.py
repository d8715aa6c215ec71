"""Immutable values that the API returns. Fields unknown to this release are dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar, cast

from .errors import CommandFailed, CommandTimeout, UnexpectedAnswer

T = TypeVar("T")

State = Literal["creating", "running", "paused", "stopping", "stopped", "failed"]
ExpiryAction = Literal["destroy", "stop", "pause"]
Network = Literal["none", "internet"]


#: Limits of a command in an error message: characters of its command line, and lines of its standard error.
_LONGEST_NAME = 80
_LAST_LINES = 10


def wire_name(key: str) -> Any:
    """A field whose JSON key is not its name in camelCase."""
    return field(metadata={"key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """A sandbox as the server described it.

    Attributes:
        id: The sandbox's id; calls accept `alias` too.
        state: `creating`, `running`, `paused`, `stopping`, `stopped` or `failed`.
        reason: Why it ended without a request: `timeout`, `idle`, `exited`, `oom`, `host_restart` or `keeper_lost`.
        end_at: When its timeout expires; `None` if it has none or does not run.
        timeout: Lifetime in seconds; 0 is no timeout.
        disk_enforced: The kernel enforces `disk_mb`; otherwise `disk_mb` is advisory.
        durable: `fsync` in the sandbox waits for the disk.
        delete_at: When its files are deleted, if it stays stopped.
    """

    id: str = wire_name("sandboxID")
    session_id: str = wire_name("sessionID")
    template: str = wire_name("templateID")
    state: State
    cpu_count: float
    memory_mb: int = wire_name("memoryMB")
    disk_mb: int = wire_name("diskMB")
    disk_enforced: bool = False
    pids: int
    network: Network
    timeout: int
    on_timeout: ExpiryAction
    on_idle: ExpiryAction
    auto_resume: bool
    created_at: datetime
    metadata: dict[str, str]
    alias: str | None = None
    reason: str | None = None
    error: str | None = None
    idle_timeout: int | None = None
    started_at: datetime | None = None
    end_at: datetime | None = None
    stopped_at: datetime | None = None
    delete_at: datetime | None = None
    durable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The result of a command.

    Attributes:
        exit_code: 124 after a timeout, 137 after an OOM kill, 128 + n after signal n.
        stdout: Standard output as UTF-8; invalid bytes become U+FFFD.
        stderr: Standard error, in the same form.
        timed_out: The timeout ended the command.
        oom_killed: The kernel's OOM killer killed a process of the command.
        truncated: The output is incomplete; `Commands.connect(exec_id)` reads all output that the server keeps.
        cmd: The command line.
    """

    exec_id: str = wire_name("execID")
    exit_code: int
    stdout: str
    stderr: str
    cmd: str = ""
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    def check(self) -> CommandResult:
        """Returns the result if the exit code is 0; otherwise raises `CommandFailed` or `CommandTimeout`."""
        if self.ok:
            return self
        details = {"exit_code": str(self.exit_code), "exec_id": self.exec_id}
        error: CommandFailed | CommandTimeout
        if self.timed_out:
            remedy = "give it a longer timeout; timeout=None disables it"
            error = CommandTimeout(self._summary("was ended by its timeout"), details=details, remedy=remedy)
        else:
            end = "was killed because it ran out of memory" if self.oom_killed else f"ended with {self.exit_code}"
            error = CommandFailed(self._summary(end), details=details)
        error.result = self
        raise error

    def _summary(self, end: str) -> str:
        """The command, how it ended, and the last lines of its standard error."""
        first = self.cmd.split("\n", 1)[0]
        name = first if first == self.cmd and len(first) <= _LONGEST_NAME else f"{first[:_LONGEST_NAME]}…"
        lines = self.stderr.strip().split("\n")[-_LAST_LINES:]
        separator = ": " if len(lines) == 1 else ":\n"
        return f"{name!r} {end}" + (separator + "\n".join(lines) if lines != [""] else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInfo:
    """A running or finished command."""

    exec_id: str = wire_name("execID")
    pid: int
    cmd: str
    state: Literal["running", "exited"]
    started_at: datetime
    args: list[str] = field(default_factory=list)
    cwd: str | None = None
    user: str | None = None
    tag: str | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of a command's output.

    Attributes:
        stream: `stdout`, `stderr`, or `gap` for output that the server no longer keeps, with empty `data`.
        data: The bytes.
        text: The bytes as text. A character that is split between two pieces is in the second.
        position: Offset of the first byte, counted over both streams.
    """

    stream: Literal["stdout", "stderr", "gap"]
    data: bytes
    text: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """Metadata of a path. Symbolic links are not followed; `mode` is octal."""

    name: str
    path: str
    type: Literal["file", "directory", "link", "other"]
    is_dir: bool
    size: int
    mode: str
    uid: int
    gid: int
    modified_at: datetime
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A search result. `path` is relative to the directory; `line` and `text` are set by searches for content."""

    name: str
    path: str
    type: Literal["file", "directory", "link", "other"]
    is_dir: bool
    size: int
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEvent:
    """A change in a watched directory.

    Attributes:
        type: `create`, `write`, `remove`, `rename`, `chmod`; `overflow`: events are missing, read the directory
            again; `limit`: too many directories to watch all of them; `end`: the last event.
        path: Path relative to the directory.
        source: The path before a `rename`.
        is_dir: Whether the path is a directory, in `create` events.
        reason: Why the watch ended: `removed` or `stopped`.
    """

    type: str
    path: str = ""
    source: str | None = field(default=None, metadata={"key": "from"})
    is_dir: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackSummary:
    """The result of a directory upload. `skipped` counts entries of unsupported types."""

    entries: int
    bytes: int
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedUrl:
    """A URL to read or write one file without an API key."""

    url: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PtyInfo:
    """A terminal."""

    id: str = wire_name("ptyID")
    pid: int
    cols: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A listening port of a sandbox."""

    port: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Resource usage of a sandbox at one time. Sizes are in bytes; `cpu_used_pct` is relative to all its CPUs."""

    timestamp: datetime
    cpu_count: float
    cpu_used_pct: float
    cpu_seconds: float
    mem_used: int
    mem_cache: int
    mem_total: int
    disk_total: int
    pids: int
    disk_used: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a sandbox. `number` increases."""

    id: str = wire_name("eventID")
    number: int
    type: str
    sandbox_id: str = wire_name("sandboxID")
    at: datetime
    data: dict[str, Any]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@cache
def _plan(kind: Any) -> list[tuple[str, str, Callable[[str], Any] | None, bool]]:
    """For each field its name, JSON key, parser, and whether it is required."""
    plan: list[tuple[str, str, Callable[[str], Any] | None, bool]] = []
    for one in fields(kind):
        read = datetime.fromisoformat if "datetime" in str(one.type) else None
        needed = one.default is MISSING and one.default_factory is MISSING
        plan.append((one.name, one.metadata.get("key") or _camel(one.name), read, needed))
    return plan


def parse(kind: type[T], body: Mapping[str, Any]) -> T:
    """Parses a value from JSON of the server."""
    values: dict[str, Any] = {}
    for name, key, read, needed in _plan(cast("Any", kind)):
        value = body.get(key)
        if value is not None:
            values[name] = read(value) if read else value
        elif needed:
            raise UnexpectedAnswer(
                f"the response has no {key}", remedy="this release of the SDK may be too old or too new for the server"
            )
    return kind(**values)
