# Generated from _async/commands.py by generate.py.
"""Commands in the foreground and in the background."""

from __future__ import annotations

import codecs
import os
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Literal, overload

from .._deadline import FOREVER, Deadline
from .._transport import segment
from ..errors import AtollError, ExecNotFound, StdinClosed
from ..models import CommandInfo, CommandResult, Output, parse
from .concurrency import Listener, beside, sleep, tell
from .sandbox_api import SandboxApi, EventStream

#: Default timeout of a foreground command, in seconds; the same as the server's.
_USUAL = 60.0
#: Time for the response in addition to the command's timeout, in seconds.
_GRACE = 30.0
#: Longer input is sent in several requests of this size, in bytes.
_PIECE = 64 << 10


class Commands:
    """Runs commands in a sandbox: `sandbox.commands`."""

    def __init__(self, api: SandboxApi) -> None:
        self._api = api

    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[False] = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = _USUAL,
        stdin: str | bytes | None = None,
        open_stdin: bool = False,
        tag: str | None = None,
        on_stdout: Listener[str] | None = None,
        on_stderr: Listener[str] | None = None,
        check: bool = False,
    ) -> CommandResult: ...

    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[True],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        open_stdin: bool = False,
        tag: str | None = None,
    ) -> CommandHandle: ...

    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | Literal["default"] | None = "default",
        stdin: str | bytes | None = None,
        open_stdin: bool = False,
        tag: str | None = None,
        on_stdout: Listener[str] | None = None,
        on_stderr: Listener[str] | None = None,
        check: bool = False,
    ) -> CommandResult | CommandHandle:
        """Runs a command and waits for its end. With `background=True`, starts it and returns a handle.

        The command runs once, also if the connection breaks or the server restarts in the meantime.

        Args:
            cmd: A command line for `/bin/sh`, or a program and its arguments as a list.
            background: Return an `CommandHandle` without waiting for the command's end.
            cwd: The working directory. The default is the user's home directory.
            env: Environment variables, which override those of the sandbox.
            user: The user to run as. The default is the template's user.
            timeout: Seconds until the command and all its child processes are killed, which raises `CommandTimeout`
                with the output until then in `result`. `None` or 0 disables the timeout. The default is 60 in the
                foreground and no timeout in the background.
            stdin: The complete standard input.
            open_stdin: Keep standard input open for `send_stdin` (background only).
            tag: A name for `connect("tag:NAME")`.
            on_stdout: Called with each piece of standard output.
            on_stderr: Called with each piece of standard error.
            check: Raise `CommandFailed` if the exit code is not 0.
        """
        line, args = (cmd, None) if isinstance(cmd, str) else (cmd[0] if cmd else "", list(cmd[1:]))
        spec: dict[str, Any] = {
            "cmd": line,
            "args": args,
            "cwd": cwd,
            "envs": dict(env) if env else None,
            "user": user,
            "tag": tag,
        }
        # The server takes 0 as no timeout.
        limit = (0.0 if background else _USUAL) if timeout == "default" else timeout or 0.0
        spec["timeout"] = limit
        if background:
            handle = self._start(spec, open_stdin or stdin is not None)
            if stdin is not None:
                handle._begin(stdin, limit, open_stdin)
            return handle
        short = isinstance(stdin, str) and len(stdin) <= _PIECE
        if on_stdout or on_stderr or not 0 < limit <= _USUAL or not (stdin is None or short):
            # As a stream of events: output arrives at once, and pings keep the connection alive while there is none.
            handle = self._start(spec, stdin is not None)
            if stdin is None:
                result = handle.wait(on_stdout=on_stdout, on_stderr=on_stderr)
            else:
                result = handle._fed(stdin, limit, on_stdout, on_stderr)
        else:
            response = self._post(spec | {"stdin": stdin}, limit + _GRACE)
            result = parse(CommandResult, response | {"cmd": _line(spec)})
        return result.check() if check or result.timed_out else result

    def _start(self, spec: Mapping[str, Any], open_stdin: bool) -> CommandHandle:
        begun = self._post({**spec, "background": True, "openStdin": open_stdin}, None)
        return CommandHandle(self._api, begun["execID"], begun["pid"], _line(spec), input_at=0)

    def _post(self, spec: Mapping[str, Any], timeout: float | None) -> Any:
        # With the idempotency key, a retry does not start a second command.
        headers = {"idempotency-key": os.urandom(16).hex()}
        what = f"running {str(spec['cmd'])[:40]!r}"
        api = self._api
        response = api.request(
            "POST", "/commands", what, json=spec, headers=headers, repeat=True, timeout=timeout
        )
        return response.json()

    def list(self) -> list[CommandInfo]:
        """Lists running and recently finished commands, newest first."""
        return [parse(CommandInfo, one) for one in self._api.pages("/commands", "listing commands")]

    def get(self, exec_id: str) -> CommandInfo:
        """Returns a command by its id, `tag:NAME` or `pid:NUMBER`."""
        response = self._api.request("GET", f"/commands/{segment(exec_id)}", f"fetching {exec_id}")
        return parse(CommandInfo, response.json())

    def connect(self, exec_id: str) -> CommandHandle:
        """Returns a handle to a running or finished command by its id, `tag:NAME` or `pid:NUMBER`."""
        found = self.get(exec_id)
        line = _line({"cmd": found.cmd, "args": found.args})
        return CommandHandle(self._api, found.exec_id, found.pid, line, input_at=None)

    def kill(self, exec_id: str) -> bool:
        """Kills a command and all its child processes. Returns whether the command exists."""
        try:
            (self.connect(exec_id)).kill()
        except ExecNotFound:
            return False
        return True


def _line(spec: Mapping[str, Any]) -> str:
    """A command as one line."""
    if not spec["args"]:
        return str(spec["cmd"])
    # Imported here, as few programs need it.
    from shlex import join

    return join([spec["cmd"], *spec["args"]])


class CommandHandle:
    """A background command. It keeps running when the client disconnects.

    Iteration yields the command's output as `Output` from the beginning until the command ends, without gaps or
    repetitions, also if the connection breaks or the server restarts in the meantime.

    Attributes:
        exec_id: The command's id; `commands.connect(exec_id)` returns another handle.
        pid: The process id in the sandbox.
    """

    def __init__(self, api: SandboxApi, exec_id: str, pid: int, line: str, *, input_at: int | None) -> None:
        self._api, self.exec_id, self.pid, self._line = api, exec_id, pid, line
        self._path = f"/commands/{segment(exec_id)}"
        #: Offset of the next byte of input; `None` until the server reported it.
        self._input_at = input_at

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.exec_id} in {self._api.id}>"

    def __iter__(self) -> OutputStream:
        return self.output()

    def output(self, after: int = 0) -> OutputStream:
        """Yields output from the position `after`, which counts the bytes of both streams."""
        query = {"encoding": "base64"}
        what = f"following {self.exec_id}"
        return OutputStream(self._api.events(f"{self._path}/output", what, query, str(after)), self.exec_id)

    def wait(
        self,
        timeout: float | None = None,
        *,
        on_stdout: Listener[str] | None = None,
        on_stderr: Listener[str] | None = None,
    ) -> CommandResult:
        """Waits until the command ends and returns its output. Raises `CommandTimeout` if its own timeout ended it.

        Args:
            timeout: Seconds to wait. After them the call raises `DeadlineExceeded`, and the command keeps running. The
                default is no limit.
            on_stdout: Called with each piece of standard output.
            on_stderr: Called with each piece of standard error.
        """
        kept: dict[str, list[bytes]] = {"stdout": [], "stderr": [], "gap": []}
        listeners = {"stdout": on_stdout, "stderr": on_stderr}
        stream = self.output()
        deadline = Deadline(timeout or FOREVER, f"waiting for {self.exec_id}")
        try:
            while (piece := stream.next(deadline)) is not None:
                kept[piece.stream].append(piece.data)
                listener = listeners.get(piece.stream)
                if listener is not None and piece.text:
                    tell(listener, piece.text)
        finally:
            stream.close()
        result = parse(
            CommandResult,
            {
                **(stream.exit or {}),
                "cmd": self._line,
                "execID": self.exec_id,
                "stdout": b"".join(kept["stdout"]).decode("utf-8", "replace"),
                "stderr": b"".join(kept["stderr"]).decode("utf-8", "replace"),
                "truncated": bool(kept["gap"]),
            },
        )
        return result.check() if result.timed_out else result

    def info(self) -> CommandInfo:
        """Fetches the current state of the command."""
        response = self._api.request("GET", self._path, f"fetching {self.exec_id}")
        return parse(CommandInfo, response.json())

    def kill(self) -> None:
        """Kills the command and all its child processes."""
        what = f"killing {self.exec_id}"
        self._api.request("POST", f"{self._path}/signal", what, json={"signal": 9}, repeat=True)

    def signal(self, number: int) -> None:
        """Sends a signal, such as `signal.SIGINT`, to the command's process group."""
        what = f"sending signal {int(number)} to {self.exec_id}"
        self._api.request("POST", f"{self._path}/signal", what, json={"signal": int(number)})

    def send_stdin(self, data: str | bytes, *, timeout: float | None = None) -> None:
        """Writes to the standard input of a command with `open_stdin=True`. Each byte is written once, also if the
        connection breaks.

        Args:
            timeout: Seconds in which the command must read the data. The default is the client's timeout.
        """
        rest = data.encode() if isinstance(data, str) else bytes(data)
        deadline = Deadline(timeout or self._api.client.timeout, f"giving input to {self.exec_id}")
        if self._input_at is None:
            self._input_at = self._write(0, b"", deadline)
        wait = 0.001
        while rest:
            at = self._input_at
            self._input_at = taken = self._write(at, rest[:_PIECE], deadline)
            rest = rest[taken - at :]
            if taken > at:
                wait = 0.001
            elif deadline.left() <= wait:
                raise deadline.exceeded()
            else:
                sleep(wait)
                wait = min(0.1, wait * 2)

    def _write(self, at: int, data: bytes, deadline: Deadline) -> int:
        path, query = f"{self._path}/stdin", {"offset": at}
        # Each request has at most the client's timeout, also if the command reads slowly.
        left = max(0.001, min(deadline.left(), self._api.client.timeout))
        response = self._api.request(
            "POST", path, deadline.what, query=query, body=data, repeat=True, timeout=left
        )
        return int(response.json()["taken"])

    def close_stdin(self) -> None:
        """Closes the command's standard input."""
        what = f"closing the standard input of {self.exec_id}"
        self._api.request("POST", f"{self._path}/stdin/close", what, repeat=True)

    def _begin(self, data: str | bytes, limit: float | None, more: bool) -> None:
        """Writes the first input. If that fails, kills the command, as the caller never gets its handle."""
        try:
            self.send_stdin(data, timeout=limit + _GRACE if limit else None)
            if not more:
                self.close_stdin()
        except StdinClosed:
            raise
        except BaseException:
            with suppress(AtollError):
                self.kill()
            raise

    def _fed(
        self,
        data: str | bytes,
        limit: float,
        on_stdout: Listener[str] | None,
        on_stderr: Listener[str] | None,
    ) -> CommandResult:
        """Writes all input while waiting for the command to end. The command need not read all of it."""
        failures: list[AtollError] = []

        def feed() -> None:
            try:
                self.send_stdin(data, timeout=limit + _GRACE if limit else FOREVER)
                self.close_stdin()
            except StdinClosed:
                # The command ended or closed its standard input before it read everything, which is no error.
                pass
            except AtollError as error:
                # Otherwise the command would wait for input that never arrives.
                failures.append(error)
                with suppress(AtollError):
                    self.kill()

        with beside(feed):
            result = self.wait(on_stdout=on_stdout, on_stderr=on_stderr)
        if failures:
            raise failures[0]
        return result


class OutputStream:
    """Yields a command's output as it arrives. `exit` describes the command's end once it has ended."""

    def __init__(self, events: EventStream, exec_id: str) -> None:
        self._events, self._exec_id = events, exec_id
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        self.exit: dict[str, Any] | None = None

    def __iter__(self) -> OutputStream:
        return self

    def __next__(self) -> Output:
        piece = self.next(None)
        if piece is None:
            raise StopIteration
        return piece

    def next(self, deadline: Deadline | None) -> Output | None:
        """Returns the next piece of output, or `None` once the command has ended."""
        until = deadline.until if deadline else monotonic() + FOREVER
        while self.exit is None:
            try:
                message = self._events.next(until)
            except TimeoutError:
                raise (deadline or Deadline(0, f"following {self._exec_id}")).exceeded() from None
            data = message.data
            if message.event == "exit":
                self.exit = data
                self.close()
            elif message.event == "gap":
                return Output("gap", b"", "", data["from"])
            elif message.event in ("stdout", "stderr"):
                piece = b64decode(data["base64"])
                text = self._decoders[message.event].decode(piece)
                return Output("stdout" if message.event == "stdout" else "stderr", piece, text, data["position"])
        return None

    def close(self) -> None:
        """Closes the stream. The command keeps running."""
        self._events.close()
