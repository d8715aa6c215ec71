"""A port of a sandbox as one of this machine. `_async/forward.py` is the same for programs on an event loop."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from time import monotonic

from .. import _websocket
from .._deadline import FOREVER, Deadline
from ..errors import AtollError, ConnectionFailed
from .door import Door, Socket

#: How much goes in one message.
_PIECE = 64 << 10
#: How long a connection to the sandbox may take.
_DIAL = 30.0


class Forward:
    """A port of this machine that leads into a sandbox.

    Attributes:
        host: Where this machine listens.
        port: On this machine.
        remote_port: In the sandbox.
        last_error: Why the last connection that failed did, if one has: nobody may listen in the sandbox.
    """

    def __init__(self, door: Door, remote_port: int, listener: socket.socket) -> None:
        self._door, self._listener = door, listener
        self.host, self.port = listener.getsockname()[:2]
        self.remote_port = remote_port
        self.last_error: AtollError | None = None
        self._open: set[socket.socket | Socket] = set()
        self._closed = False
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True, name=f"atoll-forward-{self.port}").start()

    @classmethod
    def open(cls, door: Door, remote_port: int, local_port: int, host: str) -> Forward:
        """Begins to listen."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return cls(door, remote_port, socket.create_server((host, local_port), family=family))

    @property
    def url(self) -> str:
        """The port as a URL."""
        return f"http://{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.host}:{self.port} to {self.remote_port} in {self._door.id}>"

    def __enter__(self) -> Forward:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Listens no more, and ends the connections that there are."""
        with self._lock:
            self._closed = True
            ends = list(self._open)
        for end in (self._listener, *ends):
            _end(end)

    def _accept(self) -> None:
        while True:
            try:
                local, _ = self._listener.accept()
            except OSError:
                return
            if self._hold(local):
                threading.Thread(target=self._serve, args=(local,), daemon=True).start()

    def _hold(self, end: socket.socket | Socket) -> bool:
        """Keeps it so that it can be closed, unless that is over."""
        with self._lock:
            if not self._closed:
                self._open.add(end)
                return True
        _end(end)
        return False

    def _serve(self, local: socket.socket) -> None:
        tunnel = None
        try:
            deadline = Deadline(_DIAL, f"connecting to port {self.remote_port} in {self._door.id}")
            tunnel = self._door.socket(f"/ports/{self.remote_port}/tunnel", "a tunnel", deadline)
            if self._hold(tunnel):
                threading.Thread(target=self._up, args=(local, tunnel), daemon=True).start()
                self._down(tunnel, local)
        except (AtollError, OSError) as failure:
            if not self._closed:
                told = f"port {self.remote_port} in {self._door.id}: {failure}"
                self.last_error = failure if isinstance(failure, AtollError) else ConnectionFailed(told)
        finally:
            for end in (local, tunnel):
                if end is not None:
                    self._open.discard(end)
                    _end(end)

    def _up(self, local: socket.socket, tunnel: Socket) -> None:
        try:
            while data := local.recv(_PIECE):
                tunnel.send(_websocket.BINARY, data, monotonic() + FOREVER)
            tunnel.send(_websocket.BINARY, b"", monotonic() + FOREVER)
        except OSError:
            # One of them is gone, and the other direction has noticed or will.
            tunnel.close()

    def _down(self, tunnel: Socket, local: socket.socket) -> None:
        while True:
            message = tunnel.receive(monotonic() + FOREVER)
            if message.kind == _websocket.CLOSE:
                if message.code != 1000:
                    raise ConnectionFailed(message.data.decode("utf-8", "replace"))
                return
            if message.data:
                local.sendall(message.data)
            else:
                local.shutdown(socket.SHUT_WR)


def _end(end: socket.socket | Socket) -> None:
    """Ends it for whoever waits for it too."""
    if isinstance(end, socket.socket):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    end.close()
