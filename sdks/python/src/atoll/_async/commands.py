"""Commands: run and waited for, or started and followed."""

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
from .door import AsyncDoor, EventStream

#: How long a command that is waited for may take if nothing is said; the server's own default.
_USUAL = 60.0
#: How much longer its answer may take.
_GRACE = 30.0
#: Input that does not fit into a request is written bit by bit.
_PIECE = 64 << 10


class AsyncCommands:
    """Runs commands in a sandbox: `sandbox.commands`."""

    def __init__(self, door: AsyncDoor) -> None:
        self._door = door

    @overload
    async def run(
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
    async def run(
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
    ) -> AsyncCommandHandle: ...

    async def run(
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
    ) -> CommandResult | AsyncCommandHandle:
        """Runs a command and waits for its end, or, with `background=True`, only starts it.

        It is run once, also when the connection breaks or the server restarts meanwhile.

        Args:
            cmd: A line for `/bin/sh`, or a program and its arguments as a list.
            background: Come back at once, with an `AsyncCommandHandle`.
            cwd: Where it runs; the user's home if nothing is said.
            env: Variables that win over the sandbox's.
            user: As whom; the template's user if nothing is said.
            timeout: After how many seconds it is ended with everything it started: `CommandTimeout`, whose `result` has
                the output until then. `None` or 0 is never; the default is 60, and never in the background.
            stdin: All its input.
            open_stdin: In the background: input comes by `send_stdin`.
            tag: A name to find it by: `connect("tag:NAME")`.
            on_stdout: Is told what it writes, as it does.
            on_stderr: The same for its standard error.
            check: `CommandFailed` if it does not end with 0.
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
        # For the server 0 is never.
        limit = (0.0 if background else _USUAL) if timeout == "default" else timeout or 0.0
        spec["timeout"] = limit
        if background:
            handle = await self._start(spec, open_stdin or stdin is not None)
            if stdin is not None:
                await handle._begin(stdin, limit, open_stdin)
            return handle
        short = isinstance(stdin, str) and len(stdin) <= _PIECE
        if on_stdout or on_stderr or not 0 < limit <= _USUAL or not (stdin is None or short):
            # Followed: its output is told at once, and a silence of any length is no silence of the connection.
            handle = await self._start(spec, stdin is not None)
            if stdin is None:
                result = await handle.wait(on_stdout=on_stdout, on_stderr=on_stderr)
            else:
                result = await handle._fed(stdin, limit, on_stdout, on_stderr)
        else:
            answer = await self._post(spec | {"stdin": stdin}, limit + _GRACE)
            result = parse(CommandResult, answer | {"cmd": _line(spec)})
        return result.check() if check or result.timed_out else result

    async def _start(self, spec: Mapping[str, Any], open_stdin: bool) -> AsyncCommandHandle:
        begun = await self._post({**spec, "background": True, "openStdin": open_stdin}, None)
        return AsyncCommandHandle(self._door, begun["execID"], begun["pid"], _line(spec), input_at=0)

    async def _post(self, spec: Mapping[str, Any], timeout: float | None) -> Any:
        # The key makes it one command, however often it has to be asked for.
        headers = {"idempotency-key": os.urandom(16).hex()}
        what = f"running {str(spec['cmd'])[:40]!r}"
        door = self._door
        answer = await door.ask("POST", "/commands", what, json=spec, headers=headers, repeat=True, timeout=timeout)
        return answer.json()

    async def list(self) -> list[CommandInfo]:
        """The sandbox's commands, newest first: those that run, and the last that have ended."""
        return [parse(CommandInfo, one) for one in await self._door.pages("/commands", "listing commands")]

    async def get(self, exec_id: str) -> CommandInfo:
        """A command by its id, `tag:NAME` or `pid:NUMBER`."""
        answer = await self._door.ask("GET", f"/commands/{segment(exec_id)}", f"looking at {exec_id}")
        return parse(CommandInfo, answer.json())

    async def connect(self, exec_id: str) -> AsyncCommandHandle:
        """A handle on a command by its id, `tag:NAME` or `pid:NUMBER`: whoever started it, and ended or not."""
        found = await self.get(exec_id)
        line = _line({"cmd": found.cmd, "args": found.args})
        return AsyncCommandHandle(self._door, found.exec_id, found.pid, line, input_at=None)

    async def kill(self, exec_id: str) -> bool:
        """Ends a command and everything it started; whether there was one."""
        try:
            await (await self.connect(exec_id)).kill()
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


class AsyncCommandHandle:
    """A command that runs in the background. It goes on whoever listens.

    Iterating over it gives its output from the beginning, as `Output`, until it ends: with neither a gap nor a
    repetition, also when the connection breaks or the server restarts meanwhile.

    Attributes:
        exec_id: Its id: `commands.connect(exec_id)` gives another handle on it.
        pid: Inside the sandbox.
    """

    def __init__(self, door: AsyncDoor, exec_id: str, pid: int, line: str, *, input_at: int | None) -> None:
        self._door, self.exec_id, self.pid, self._line = door, exec_id, pid, line
        self._path = f"/commands/{segment(exec_id)}"
        #: How much input it was given, once that is known.
        self._input_at = input_at

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.exec_id} in {self._door.id}>"

    def __aiter__(self) -> AsyncOutputStream:
        return self.output()

    def output(self, after: int = 0) -> AsyncOutputStream:
        """Its output from a position on: bytes of both streams together."""
        query = {"encoding": "base64"}
        what = f"following {self.exec_id}"
        return AsyncOutputStream(self._door.events(f"{self._path}/output", what, query, str(after)), self.exec_id)

    async def wait(
        self,
        timeout: float | None = None,
        *,
        on_stdout: Listener[str] | None = None,
        on_stderr: Listener[str] | None = None,
    ) -> CommandResult:
        """Waits for its end, and tells what it wrote. `CommandTimeout` if its own timeout ended it.

        Args:
            timeout: How long, in seconds; then `DeadlineExceeded`, and the command goes on. As long as it takes if
                nothing is said.
        """
        kept: dict[str, list[bytes]] = {"stdout": [], "stderr": [], "gap": []}
        told = {"stdout": on_stdout, "stderr": on_stderr}
        stream = self.output()
        deadline = Deadline(timeout or FOREVER, f"waiting for {self.exec_id}")
        try:
            while (piece := await stream.next(deadline)) is not None:
                kept[piece.stream].append(piece.data)
                listener = told.get(piece.stream)
                if listener is not None and piece.text:
                    await tell(listener, piece.text)
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

    async def info(self) -> CommandInfo:
        """How it is now."""
        answer = await self._door.ask("GET", self._path, f"looking at {self.exec_id}")
        return parse(CommandInfo, answer.json())

    async def kill(self) -> None:
        """Ends it and everything it started."""
        what = f"killing {self.exec_id}"
        await self._door.ask("POST", f"{self._path}/signal", what, json={"signal": 9}, repeat=True)

    async def signal(self, number: int) -> None:
        """Sends its process group a signal, such as `signal.SIGINT`."""
        what = f"sending signal {int(number)} to {self.exec_id}"
        await self._door.ask("POST", f"{self._path}/signal", what, json={"signal": int(number)})

    async def send_stdin(self, data: str | bytes, *, timeout: float | None = None) -> None:
        """Gives it input, for commands with `open_stdin=True`: each byte once, also when the connection breaks.

        Args:
            timeout: How long it may take the command to read it, in seconds; the client's if nothing is said.
        """
        rest = data.encode() if isinstance(data, str) else bytes(data)
        deadline = Deadline(timeout or self._door.client.timeout, f"giving input to {self.exec_id}")
        if self._input_at is None:
            self._input_at = await self._write(0, b"", deadline)
        wait = 0.001
        while rest:
            at = self._input_at
            self._input_at = taken = await self._write(at, rest[:_PIECE], deadline)
            rest = rest[taken - at :]
            if taken > at:
                wait = 0.001
            elif deadline.left() <= wait:
                raise deadline.exceeded()
            else:
                await sleep(wait)
                wait = min(0.1, wait * 2)

    async def _write(self, at: int, data: bytes, deadline: Deadline) -> int:
        path, query = f"{self._path}/stdin", {"offset": at}
        # A command that does not read is no reason to wait longer for an answer.
        left = max(0.001, min(deadline.left(), self._door.client.timeout))
        answer = await self._door.ask("POST", path, deadline.what, query=query, body=data, repeat=True, timeout=left)
        return int(answer.json()["taken"])

    async def close_stdin(self) -> None:
        """Says that no more input comes."""
        what = f"closing the input of {self.exec_id}"
        await self._door.ask("POST", f"{self._path}/stdin/close", what, repeat=True)

    async def _begin(self, data: str | bytes, limit: float | None, more: bool) -> None:
        """Gives it its first input. Without that nobody gets to know it, and it is ended."""
        try:
            await self.send_stdin(data, timeout=limit + _GRACE if limit else None)
            if not more:
                await self.close_stdin()
        except StdinClosed:
            raise
        except BaseException:
            with suppress(AtollError):
                await self.kill()
            raise

    async def _fed(
        self,
        data: str | bytes,
        limit: float,
        on_stdout: Listener[str] | None,
        on_stderr: Listener[str] | None,
    ) -> CommandResult:
        """Waits for its end, while it is given all its input, as far as it wants it and within its own time."""
        failures: list[AtollError] = []

        async def feed() -> None:
            try:
                await self.send_stdin(data, timeout=limit + _GRACE if limit else FOREVER)
                await self.close_stdin()
            except StdinClosed:
                # It has ended, or closed it, before it read all: that is its own affair.
                pass
            except AtollError as error:
                # It would wait for what does not come.
                failures.append(error)
                with suppress(AtollError):
                    await self.kill()

        async with beside(feed):
            result = await self.wait(on_stdout=on_stdout, on_stderr=on_stderr)
        if failures:
            raise failures[0]
        return result


class AsyncOutputStream:
    """A command's output as it comes. `exit` is how it ended, once it has."""

    def __init__(self, events: EventStream, exec_id: str) -> None:
        self._events, self._exec_id = events, exec_id
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        self.exit: dict[str, Any] | None = None

    def __aiter__(self) -> AsyncOutputStream:
        return self

    async def __anext__(self) -> Output:
        piece = await self.next(None)
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def next(self, deadline: Deadline | None) -> Output | None:
        """The next piece; nothing once it has ended."""
        until = deadline.until if deadline else monotonic() + FOREVER
        while self.exit is None:
            try:
                message = await self._events.next(until)
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
        """Listens no more. The command goes on."""
        self._events.close()
