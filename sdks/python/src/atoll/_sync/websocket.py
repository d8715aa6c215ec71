"""WebSockets for programs without an event loop: those of `_async/websocket.py`, on a loop in a thread.

`websockets.sync` would need no loop. But it holds one lock while it sends, for as long as the peer does not read, and
receives nothing meanwhile: a tunnel to a program that echoes would deadlock, and a send could not have a deadline.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .._transport import Call

if TYPE_CHECKING:
    import asyncio

    from .._async import websocket
    from .client import Client

T = TypeVar("T")

_lock = threading.Lock()
#: The loop of this process, with its process id: threads do not survive a fork.
_loop: tuple[int, asyncio.AbstractEventLoop] | None = None


def _running_loop() -> asyncio.AbstractEventLoop:
    """Starts the loop's thread with the first call."""
    global _loop
    import asyncio

    with _lock:
        if _loop is None or _loop[0] != os.getpid():
            _loop = os.getpid(), asyncio.new_event_loop()
            threading.Thread(target=_loop[1].run_forever, daemon=True, name="atoll-websockets").start()
        return _loop[1]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the loop and waits for its result."""
    import asyncio

    future = asyncio.run_coroutine_threadsafe(work, _running_loop())
    try:
        return future.result()
    except BaseException:
        # Ctrl-C, for one.
        future.cancel()
        raise


class WebSocket:
    """A WebSocket. One thread may receive while another sends."""

    def __init__(self, inner: websocket.WebSocket) -> None:
        self._inner = inner

    @classmethod
    def open(cls, client: Client, call: Call, until: float) -> WebSocket:
        """Connects. An error response is raised as its `AtollError`."""
        from .._async import websocket

        # Only what both clients have is used.
        return cls(run(websocket.WebSocket.open(cast("Any", client), call, until)))

    def receive(self, until: float) -> bytes:
        """The next message. `SocketClosed` if the server ended the connection, and `ConnectionBroken` if it broke."""
        return run(self._inner.receive(until))

    def send(self, data: bytes, until: float) -> None:
        """Sends a binary message."""
        run(self._inner.send(data, until))

    def close(self) -> None:
        """Closes the connection. Can be called from any thread."""
        self._inner.close()
