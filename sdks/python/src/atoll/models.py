"""What the API tells of, as values that do not change. A field that this release does not know is left out."""

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


#: Of a command in an error message: how much of its line, in characters, and of its standard error, in lines.
_LONGEST_NAME = 80
_LAST_LINES = 10


def called(key: str) -> Any:
    """A field that has another name on the wire than its own in camelCase."""
    return field(metadata={"key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """A sandbox as the server told of it.

    Attributes:
        id: Its name in every call; `alias` is another.
        state: `creating`, `running`, `paused`, `stopping`, `stopped` or `failed`.
        reason: Why it ended by itself: `timeout`, `idle`, `exited`, `oom`, `host_restart` or `keeper_lost`.
        end_at: When its time is up; `None` is without end, or not while it does not run.
        timeout: In seconds; 0 is without end.
        disk_enforced: The kernel enforces `disk_mb`; otherwise `disk_mb` is advisory.
        durable: `fsync` inside waits for the disk.
        delete_at: When its files are deleted, if it stays stopped.
    """

    id: str = called("sandboxID")
    session_id: str = called("sessionID")
    template: str = called("templateID")
    state: State
    cpu_count: float
    memory_mb: int = called("memoryMB")
    disk_mb: int = called("diskMB")
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
    """A command that has ended.

    Attributes:
        exit_code: 124 after a deadline, 137 after an OOM kill, 128 + n after signal n.
        stdout: What it wrote; bytes that are no text are U+FFFD.
        timed_out: Its deadline came first.
        oom_killed: The kernel killed something of it for want of memory.
        truncated: There is more output than this: `Commands.connect(exec_id)` reads all that is kept.
        cmd: The command line.
    """

    exec_id: str = called("execID")
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
        """Whether it ended with 0."""
        return self.exit_code == 0

    def check(self) -> CommandResult:
        """Itself, if it ended with 0; otherwise `CommandFailed` or `CommandTimeout`."""
        if self.ok:
            return self
        details = {"exit_code": str(self.exit_code), "exec_id": self.exec_id}
        error: CommandFailed | CommandTimeout
        if self.timed_out:
            remedy = "give it a longer timeout; timeout=None is none"
            error = CommandTimeout(self._summary("was ended by its timeout"), details=details, remedy=remedy)
        else:
            end = "was killed for want of memory" if self.oom_killed else f"ended with {self.exit_code}"
            error = CommandFailed(self._summary(end), details=details)
        error.result = self
        raise error

    def _summary(self, end: str) -> str:
        """The command, how it ended, and the last lines that it wrote to standard error."""
        first = self.cmd.split("\n", 1)[0]
        name = first if first == self.cmd and len(first) <= _LONGEST_NAME else f"{first[:_LONGEST_NAME]}…"
        lines = self.stderr.strip().split("\n")[-_LAST_LINES:]
        separator = ": " if len(lines) == 1 else ":\n"
        return f"{name!r} {end}" + (separator + "\n".join(lines) if lines != [""] else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInfo:
    """A command, running or ended."""

    exec_id: str = called("execID")
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
    """A piece of what a command wrote.

    Attributes:
        stream: `stdout`, `stderr`, or `gap`: what was written there is not kept any more, and `data` is empty.
        data: The bytes.
        text: The same as text. A character that is torn apart comes with its last byte.
        position: Where it begins: bytes of both streams together.
    """

    stream: Literal["stdout", "stderr", "gap"]
    data: bytes
    text: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """What a path leads to. Links are not followed; `mode` is in octal."""

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
    """What a search found, by its path below the directory; with the line, if text was looked for."""

    name: str
    path: str
    type: Literal["file", "directory", "link", "other"]
    is_dir: bool
    size: int
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEvent:
    """Something that happened in a directory.

    Attributes:
        type: `create`, `write`, `remove`, `rename`, `chmod`; `overflow`: some are missing, look again at everything;
            `limit`: there are more directories than can be watched; `end`: nothing follows.
        path: Relative to the directory.
        source: What the path was before a `rename`.
        reason: Why it is the `end`: `removed` or `stopped`.
    """

    type: str
    path: str = ""
    source: str | None = field(default=None, metadata={"key": "from"})
    is_dir: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackSummary:
    """What came of a directory that was sent: entries of which kinds are not taken are `skipped`."""

    entries: int
    bytes: int
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedUrl:
    """A link to one file, one way, that needs no key."""

    url: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PtyInfo:
    """A terminal."""

    id: str = called("ptyID")
    pid: int
    cols: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """Something that listens in a sandbox."""

    port: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a sandbox used at a moment; sizes in bytes, `cpu_used_pct` of all its cpus."""

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
    """Something that happened to a sandbox; `number` counts up."""

    id: str = called("eventID")
    number: int
    type: str
    sandbox_id: str = called("sandboxID")
    at: datetime
    data: dict[str, Any]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@cache
def _plan(kind: Any) -> list[tuple[str, str, Callable[[str], Any] | None, bool]]:
    """For each field its name, its key, how it is read, and whether it must be there."""
    plan: list[tuple[str, str, Callable[[str], Any] | None, bool]] = []
    for one in fields(kind):
        read = datetime.fromisoformat if "datetime" in str(one.type) else None
        needed = one.default is MISSING and one.default_factory is MISSING
        plan.append((one.name, one.metadata.get("key") or _camel(one.name), read, needed))
    return plan


def parse(kind: type[T], told: Mapping[str, Any]) -> T:
    """A value from what the server told of it."""
    values: dict[str, Any] = {}
    for name, key, read, needed in _plan(cast("Any", kind)):
        value = told.get(key)
        if value is not None:
            values[name] = read(value) if read else value
        elif needed:
            raise UnexpectedAnswer(
                f"the answer has no {key}", remedy="this release of the SDK may be too old or too new for the server"
            )
    return kind(**values)
