"""Terminals: programs with a screen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import monotonic

from .._deadline import FOREVER, Deadline
from .._patience import Patience
from .._transport import Broken, Call, SocketClosed, segment, silent
from ..errors import (
    AtollError,
    ConnectionFailed,
    SandboxNotFound,
    SandboxStopped,
    TerminalNotFound,
    UnexpectedAnswer,
)
from ..models import PtyInfo, parse
from .concurrency import Lock
from .door import AsyncDoor
from .websocket import WebSocket


class AsyncPtys:
    """Opens terminals in a sandbox: `sandbox.pty`."""

    def __init__(self, door: AsyncDoor) -> None:
        self._door = door

    async def create(
        self,
        *,
        cols: int = 80,
        rows: int = 24,
        shell: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> AsyncPty:
        """Makes a terminal and joins it.

        Args:
            shell: The program; a login shell if nothing is said.
            cwd: Where it begins; the user's home if nothing is said.
            env: Variables that win over the sandbox's.
        """
        asked = {"cols": cols, "rows": rows, "shell": shell, "cwd": cwd, "envs": dict(env or {}), "user": user}
        # It is found by its tag if the answer is lost; the key makes it one even if it is asked for at the same moment.
        tag = os.urandom(16).hex()
        deadline = Deadline(self._door.client.timeout, "making a terminal")
        while True:
            try:
                answer = await self._door.ask(
                    "POST",
                    "/pty",
                    deadline.what,
                    json=asked | {"tag": tag},
                    headers={"idempotency-key": tag},
                    timeout=max(0.001, deadline.left()),
                )
                return AsyncPty(self._door, parse(PtyInfo, answer.json()), ends=True)
            except (ConnectionFailed, UnexpectedAnswer):
                try:
                    return await self._find(f"tag:{tag}", ends=True)
                except TerminalNotFound:
                    if not deadline.left():
                        raise deadline.exceeded() from None

    async def connect(self, pty_id: str) -> AsyncPty:
        """Joins a terminal that is there: first comes what its screen shows."""
        return await self._find(pty_id, ends=False)

    async def _find(self, pty_id: str, *, ends: bool) -> AsyncPty:
        answer = await self._door.ask("GET", f"/pty/{segment(pty_id)}", f"joining {pty_id}")
        return AsyncPty(self._door, parse(PtyInfo, answer.json()), ends=ends)

    async def list(self) -> list[PtyInfo]:
        """The terminals that there are, newest first."""
        return [parse(PtyInfo, one) for one in await self._door.pages("/pty", "listing terminals")]

    async def kill(self, pty_id: str) -> bool:
        """Ends a terminal with everything its program started; whether there was one."""
        try:
            await self._door.ask("DELETE", f"/pty/{segment(pty_id)}", f"ending {pty_id}")
        except TerminalNotFound:
            return False
        return True


class AsyncPty:
    """A terminal that was joined. It stays when its clients go, also when the server restarts; after `with`, one that
    `create` made is ended, and one that `connect` joined is left.

    Iterating over it gives what it writes, as bytes, until its program ends. After a broken connection comes what its
    screen shows then: a terminal that shows the bytes shows the same again.

    Attributes:
        id: `pty.connect(id)` joins it from elsewhere.
        pid: Inside the sandbox.
    """

    def __init__(self, door: AsyncDoor, info: PtyInfo, *, ends: bool) -> None:
        self._door = door
        # Whether it ends with its block.
        self._ends = ends
        self.id, self.pid = info.id, info.pid
        self._path = f"/pty/{segment(info.id)}"
        self._socket: WebSocket | None = None
        self._joining = Lock()
        self._patience = Patience(door.client.reconnect)
        self._over = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self._door.id}>"

    def __aiter__(self) -> AsyncPty:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def __aenter__(self) -> AsyncPty:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if self._ends:
                await self.kill()
        except (SandboxNotFound, SandboxStopped):
            # It ended with its sandbox.
            pass
        except AtollError as failure:
            if error is None:
                raise
            # What went wrong first is what matters.
            error.add_note(f"the terminal {self.id} could not be ended: {failure}")
        finally:
            self.close()

    async def read(self, timeout: float | None = None) -> bytes:
        """What it writes next; nothing once its program has ended, and `DeadlineExceeded` if nothing comes in so many
        seconds."""
        deadline = Deadline(timeout or FOREVER, f"waiting for {self.id} to write")
        while not self._over:
            socket = None
            try:
                socket = await self._join(deadline.until)
                data = await socket.receive(deadline.until)
            except TimeoutError:
                if monotonic() >= deadline.until:
                    raise deadline.exceeded() from None
                # The connection was not opened in time.
                await self._pause(silent(), deadline)
            except Broken as error:
                self._drop(socket)
                await self._pause(error, deadline)
            except SocketClosed as closed:
                self._drop(socket)
                await self._closed(closed, deadline)
            except TerminalNotFound:
                # Its program ended while nobody listened.
                self._over = True
            else:
                if data:
                    self._patience.progress()
                    return data
        return b""

    async def wait(self, timeout: float | None = None) -> None:
        """Reads on until its program has ended."""
        deadline = Deadline(timeout or FOREVER, f"waiting for the end of {self.id}")
        while await self.read(deadline.left() or 0.001):
            pass

    async def send(self, data: str | bytes) -> None:
        """Presses keys."""
        keys = data.encode() if isinstance(data, str) else data
        deadline = Deadline(self._door.client.timeout, f"sending keys to {self.id}")
        while True:
            socket = None
            try:
                socket = await self._join(deadline.until)
                return await socket.send(keys, deadline.until)
            except TimeoutError:
                raise deadline.exceeded() from None
            except Broken as error:
                self._drop(socket)
                await self._pause(error, deadline)

    async def resize(self, cols: int, rows: int) -> None:
        """Gives it another size."""
        asked = {"cols": cols, "rows": rows}
        await self._door.ask("POST", f"{self._path}/resize", f"resizing {self.id}", json=asked, repeat=True)

    async def kill(self) -> None:
        """Ends its program, with everything that it started. One that has ended is no failure."""
        try:
            await self._door.ask("DELETE", self._path, f"ending {self.id}")
        except TerminalNotFound:
            pass
        self.close()

    def close(self) -> None:
        """Leaves it. It goes on."""
        self._drop(self._socket)

    async def _join(self, until: float) -> WebSocket:
        async with self._joining:
            if self._socket is None:
                deadline = Deadline(max(0.0, min(self._door.client.timeout, until - monotonic())), "")
                self._socket = await self._door.socket(self._path, f"joining {self.id}", deadline)
            return self._socket

    def _drop(self, socket: WebSocket | None) -> None:
        if socket is not None:
            socket.close()
            if self._socket is socket:
                self._socket = None

    async def _pause(self, error: Broken, deadline: Deadline) -> None:
        call = Call("GET", self._path, f"joining {self.id} in {self._door.id}", repeat=True)
        await self._door.client.pause(call, error, self._patience, deadline)

    async def _closed(self, closed: SocketClosed, deadline: Deadline) -> None:
        """Finds out whether the program ended, or why else the server closed the connection."""
        if closed.code == 1000:
            self._over = True
            return
        if closed.code in (1001, 1012):
            await self._pause(Broken("the server went away"), deadline)
            return
        try:
            # Says in all detail what a close code cannot.
            await self._door.ask("GET", self._path, f"joining {self.id}")
        except TerminalNotFound:
            self._over = True
            return
        raise ConnectionFailed(f"{self.id} was closed with {closed.code}: {closed.reason}")
