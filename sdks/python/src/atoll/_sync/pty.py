# Generated from _async/pty.py by generate.py.
"""Terminals (PTYs)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import monotonic

from .._deadline import FOREVER, Deadline
from .._retry import RetryPolicy
from .._transport import Call, ConnectionBroken, SocketClosed, segment, silent
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
from .sandbox_api import SandboxApi
from .websocket import WebSocket


class Ptys:
    """Opens terminals in a sandbox: `sandbox.pty`."""

    def __init__(self, api: SandboxApi) -> None:
        self._api = api

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
        """Creates a terminal and connects to it.

        Args:
            cols: Width in characters.
            rows: Height in lines.
            shell: The program to run. The default is a login shell.
            cwd: The working directory. The default is the user's home directory.
            env: Environment variables, which override those of the sandbox.
            user: The user to run as. The default is the template's user.
        """
        body = {"cols": cols, "rows": rows, "shell": shell, "cwd": cwd, "envs": dict(env or {}), "user": user}
        # The tag finds the terminal if the response is lost; the idempotency key covers concurrent retries.
        tag = os.urandom(16).hex()
        deadline = Deadline(self._api.client.timeout, "creating a terminal")
        while True:
            try:
                response = self._api.request(
                    "POST",
                    "/pty",
                    deadline.what,
                    json=body | {"tag": tag},
                    headers={"idempotency-key": tag},
                    timeout=max(0.001, deadline.left()),
                )
                return Pty(self._api, parse(PtyInfo, response.json()), ends=True)
            except (ConnectionFailed, UnexpectedAnswer):
                try:
                    return self._find(f"tag:{tag}", ends=True)
                except TerminalNotFound:
                    if not deadline.left():
                        raise deadline.exceeded() from None

    def connect(self, pty_id: str) -> Pty:
        """Connects to an existing terminal. Its current screen is the first output."""
        return self._find(pty_id, ends=False)

    def _find(self, pty_id: str, *, ends: bool) -> Pty:
        response = self._api.request("GET", f"/pty/{segment(pty_id)}", f"connecting to {pty_id}")
        return Pty(self._api, parse(PtyInfo, response.json()), ends=ends)

    def list(self) -> list[PtyInfo]:
        """Lists the terminals, newest first."""
        return [parse(PtyInfo, one) for one in self._api.pages("/pty", "listing terminals")]

    def kill(self, pty_id: str) -> bool:
        """Kills a terminal's program and all its child processes. Returns whether the terminal exists."""
        try:
            self._api.request("DELETE", f"/pty/{segment(pty_id)}", f"killing {pty_id}")
        except TerminalNotFound:
            return False
        return True


class Pty:
    """A connection to a terminal. The terminal survives its clients and restarts of the server. The end of `with` kills
    a terminal that `create` returned, and only disconnects from one that `connect` returned.

    Iteration yields the terminal's output as bytes until its program ends. After a reconnection the first output is the
    current screen, so a terminal emulator that shows the bytes ends up with the same screen.

    Attributes:
        id: The terminal's id, for `pty.connect(id)`.
        pid: The process id in the sandbox.
    """

    def __init__(self, api: SandboxApi, info: PtyInfo, *, ends: bool) -> None:
        self._api = api
        # Whether the end of `with` kills the terminal.
        self._ends = ends
        self.id, self.pid = info.id, info.pid
        self._path = f"/pty/{segment(info.id)}"
        self._socket: WebSocket | None = None
        self._joining = Lock()
        self._retry = RetryPolicy(api.client.reconnect)
        self._over = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self._api.id}>"

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
            # The terminal ended with its sandbox.
            pass
        except AtollError as failure:
            if error is None:
                raise
            # The first error is the one to report.
            error.add_note(f"the terminal {self.id} could not be killed: {failure}")
        finally:
            self.close()

    def read(self, timeout: float | None = None) -> bytes:
        """Returns the next output, or `b""` once the program has ended. Raises `DeadlineExceeded` if none arrives in
        `timeout` seconds."""
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
            except ConnectionBroken as error:
                self._drop(socket)
                self._pause(error, deadline)
            except SocketClosed as closed:
                self._drop(socket)
                self._closed(closed, deadline)
            except TerminalNotFound:
                # The program ended while the client was disconnected.
                self._over = True
            else:
                if data:
                    self._retry.progress()
                    return data
        return b""

    def wait(self, timeout: float | None = None) -> None:
        """Discards output until the program has ended."""
        deadline = Deadline(timeout or FOREVER, f"waiting for the end of {self.id}")
        while self.read(deadline.left() or 0.001):
            pass

    def send(self, data: str | bytes) -> None:
        """Writes input to the terminal."""
        keys = data.encode() if isinstance(data, str) else data
        deadline = Deadline(self._api.client.timeout, f"writing to {self.id}")
        while True:
            socket = None
            try:
                socket = self._join(deadline.until)
                return socket.send(keys, deadline.until)
            except TimeoutError:
                raise deadline.exceeded() from None
            except ConnectionBroken as error:
                self._drop(socket)
                self._pause(error, deadline)

    def resize(self, cols: int, rows: int) -> None:
        """Changes the terminal's size."""
        body = {"cols": cols, "rows": rows}
        self._api.request("POST", f"{self._path}/resize", f"resizing {self.id}", json=body, repeat=True)

    def kill(self) -> None:
        """Kills the program and all its child processes. A terminal that has ended is no error."""
        try:
            self._api.request("DELETE", self._path, f"killing {self.id}")
        except TerminalNotFound:
            pass
        self.close()

    def close(self) -> None:
        """Disconnects. The terminal keeps running."""
        self._drop(self._socket)

    def _join(self, until: float) -> WebSocket:
        with self._joining:
            if self._socket is None:
                deadline = Deadline(max(0.0, min(self._api.client.timeout, until - monotonic())), "")
                self._socket = self._api.socket(self._path, f"connecting to {self.id}", deadline)
            return self._socket

    def _drop(self, socket: WebSocket | None) -> None:
        if socket is not None:
            socket.close()
            if self._socket is socket:
                self._socket = None

    def _pause(self, error: ConnectionBroken, deadline: Deadline) -> None:
        call = Call("GET", self._path, f"connecting to {self.id} in {self._api.id}", repeat=True)
        self._api.client.pause(call, error, self._retry, deadline)

    def _closed(self, closed: SocketClosed, deadline: Deadline) -> None:
        """Finds out whether the program ended, or why else the server closed the connection."""
        if closed.code == 1000:
            self._over = True
            return
        if closed.code in (1001, 1012):
            self._pause(ConnectionBroken("the server is shutting down"), deadline)
            return
        try:
            # The HTTP route returns the complete error, which a close code cannot.
            self._api.request("GET", self._path, f"connecting to {self.id}")
        except TerminalNotFound:
            self._over = True
            return
        raise ConnectionFailed(f"{self.id} was closed with {closed.code}: {closed.reason}")
