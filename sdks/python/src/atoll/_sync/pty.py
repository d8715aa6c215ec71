# Made from _async/pty.py by generate.py.
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
from .door import Door
from .websocket import WebSocket


class Ptys:
    """Opens terminals in a sandbox: `sandbox.pty`."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def create(
        self,
        *,
        cols: int = 80,
        rows: int = 24,
        shell: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Pty:
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
                answer = self._door.ask(
                    "POST",
                    "/pty",
                    deadline.what,
                    json=asked | {"tag": tag},
                    headers={"idempotency-key": tag},
                    timeout=max(0.001, deadline.left()),
                )
                return Pty(self._door, parse(PtyInfo, answer.json()), ends=True)
            except (ConnectionFailed, UnexpectedAnswer):
                try:
                    return self._find(f"tag:{tag}", ends=True)
                except TerminalNotFound:
                    if not deadline.left():
                        raise deadline.exceeded() from None

    def connect(self, pty_id: str) -> Pty:
        """Joins a terminal that is there: first comes what its screen shows."""
        return self._find(pty_id, ends=False)

    def _find(self, pty_id: str, *, ends: bool) -> Pty:
        answer = self._door.ask("GET", f"/pty/{segment(pty_id)}", f"joining {pty_id}")
        return Pty(self._door, parse(PtyInfo, answer.json()), ends=ends)

    def list(self) -> list[PtyInfo]:
        """The terminals that there are, newest first."""
        return [parse(PtyInfo, one) for one in self._door.pages("/pty", "listing terminals")]

    def kill(self, pty_id: str) -> bool:
        """Ends a terminal with everything its program started; whether there was one."""
        try:
            self._door.ask("DELETE", f"/pty/{segment(pty_id)}", f"ending {pty_id}")
        except TerminalNotFound:
            return False
        return True


class Pty:
    """A terminal that was joined. It stays when its clients go, also when the server restarts; after `with`, one that
    `create` made is ended, and one that `connect` joined is left.

    Iterating over it gives what it writes, as bytes, until its program ends. After a broken connection comes what its
    screen shows then: a terminal that shows the bytes shows the same again.

    Attributes:
        id: `pty.connect(id)` joins it from elsewhere.
        pid: Inside the sandbox.
    """

    def __init__(self, door: Door, info: PtyInfo, *, ends: bool) -> None:
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

    def __iter__(self) -> Pty:
        return self

    def __next__(self) -> bytes:
        data = self.read()
        if not data:
            raise StopIteration
        return data

    def __enter__(self) -> Pty:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if self._ends:
                self.kill()
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

    def read(self, timeout: float | None = None) -> bytes:
        """What it writes next; nothing once its program has ended, and `DeadlineExceeded` if nothing comes in so many
        seconds."""
        deadline = Deadline(timeout or FOREVER, f"waiting for {self.id} to write")
        while not self._over:
            socket = None
            try:
                socket = self._join(deadline.until)
                data = socket.receive(deadline.until)
            except TimeoutError:
                if monotonic() >= deadline.until:
                    raise deadline.exceeded() from None
                # The connection was not opened in time.
                self._pause(silent(), deadline)
            except Broken as error:
                self._drop(socket)
                self._pause(error, deadline)
            except SocketClosed as closed:
                self._drop(socket)
                self._closed(closed, deadline)
            except TerminalNotFound:
                # Its program ended while nobody listened.
                self._over = True
            else:
                if data:
                    self._patience.progress()
                    return data
        return b""

    def wait(self, timeout: float | None = None) -> None:
        """Reads on until its program has ended."""
        deadline = Deadline(timeout or FOREVER, f"waiting for the end of {self.id}")
        while self.read(deadline.left() or 0.001):
            pass

    def send(self, data: str | bytes) -> None:
        """Presses keys."""
        keys = data.encode() if isinstance(data, str) else data
        deadline = Deadline(self._door.client.timeout, f"sending keys to {self.id}")
        while True:
            socket = None
            try:
                socket = self._join(deadline.until)
                return socket.send(keys, deadline.until)
            except TimeoutError:
                raise deadline.exceeded() from None
            except Broken as error:
                self._drop(socket)
                self._pause(error, deadline)

    def resize(self, cols: int, rows: int) -> None:
        """Gives it another size."""
        asked = {"cols": cols, "rows": rows}
        self._door.ask("POST", f"{self._path}/resize", f"resizing {self.id}", json=asked, repeat=True)

    def kill(self) -> None:
        """Ends its program, with everything that it started. One that has ended is no failure."""
        try:
            self._door.ask("DELETE", self._path, f"ending {self.id}")
        except TerminalNotFound:
            pass
        self.close()

    def close(self) -> None:
        """Leaves it. It goes on."""
        self._drop(self._socket)

    def _join(self, until: float) -> WebSocket:
        with self._joining:
            if self._socket is None:
                deadline = Deadline(max(0.0, min(self._door.client.timeout, until - monotonic())), "")
                self._socket = self._door.socket(self._path, f"joining {self.id}", deadline)
            return self._socket

    def _drop(self, socket: WebSocket | None) -> None:
        if socket is not None:
            socket.close()
            if self._socket is socket:
                self._socket = None

    def _pause(self, error: Broken, deadline: Deadline) -> None:
        call = Call("GET", self._path, f"joining {self.id} in {self._door.id}", repeat=True)
        self._door.client.pause(call, error, self._patience, deadline)

    def _closed(self, closed: SocketClosed, deadline: Deadline) -> None:
        """Finds out whether the program ended, or why else the server closed the connection."""
        if closed.code == 1000:
            self._over = True
            return
        if closed.code in (1001, 1012):
            self._pause(Broken("the server went away"), deadline)
            return
        try:
            # Says in all detail what a close code cannot.
            self._door.ask("GET", self._path, f"joining {self.id}")
        except TerminalNotFound:
            self._over = True
            return
        raise ConnectionFailed(f"{self.id} was closed with {closed.code}: {closed.reason}")
