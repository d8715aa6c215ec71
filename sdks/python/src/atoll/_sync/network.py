"""What differs between the two kinds of programs: here, sockets that are waited for. `_async/network.py` is the same
for programs on an event loop."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from .._http import broken

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["Connection", "Listener", "Lock", "beside", "blocking", "sleep", "tell"]

T = TypeVar("T")

#: Is told things as they happen.
Listener = Callable[[T], object]

Lock = threading.Lock

#: How much is read at once.
_PIECE = 64 << 10


def tell(listener: Listener[T], value: T) -> None:
    """Calls it."""
    listener(value)


def blocking(work: Callable[..., T], *arguments: Any) -> T:
    """Does what may take a moment."""
    return work(*arguments)


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Does something else while the block goes on. It finds its end by itself."""
    threading.Thread(target=work, daemon=True).start()
    yield


class Connection:
    """Bytes to and from a server. A wait that comes to its end is a `TimeoutError`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        #: Since when nobody has used it.
        self.idle_since = 0.0

    @classmethod
    def open(cls, at: str | tuple[str, int], tls: SSLContext | None, until: float) -> Connection:
        """Connects to a host's port, or to a socket by its path."""
        connected = None
        try:
            if isinstance(at, str):
                connected = socket.socket(socket.AF_UNIX)
                connected.settimeout(_left(until))
                connected.connect(at)
                return cls(connected)
            connected = socket.create_connection(at, _left(until))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return cls(tls.wrap_socket(connected, server_hostname=at[0]) if tls else connected)
        except BaseException as error:
            if connected:
                connected.close()
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise broken(error) from error
            raise

    def send(self, data: bytes, until: float) -> None:
        """Sends all of it."""
        rest = memoryview(data)
        while rest:
            self._socket.settimeout(_left(until))
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                # Another thread that reads meanwhile has its own idea of how long.
                continue
            except OSError as error:
                raise broken(error) from error

    def receive(self, until: float) -> bytes:
        """What comes next; nothing is the end."""
        while True:
            self._socket.settimeout(_left(until))
            try:
                return self._socket.recv(_PIECE)
            except TimeoutError:
                continue
            except OSError as error:
                raise broken(error) from error

    def receive_now(self) -> bytes | None:
        """What has come already, if anything has."""
        return None if self.usable() else self.receive(monotonic() + 1.0)

    def usable(self) -> bool:
        """Whether it is there still: nothing comes where nothing was asked but its end."""
        try:
            if not hasattr(select, "poll"):
                return not select.select([self._socket], [], [], 0)[0]
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Ends it, for whoever waits for it too."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def __del__(self) -> None:
        # Whoever left an iteration half-way needs no more of it. A copy of this process may: it is not shut down.
        self._socket.close()


def _left(until: float) -> float:
    # A socket with no time at all would not wait, and say so in other words.
    left = until - monotonic()
    if left <= 0:
        raise TimeoutError
    return left
