"""A response body that is read as it arrives. `_sync/stream.py` is the sync half."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from time import monotonic

import httpx

from .._deadline import STALLED
from .._transport import ConnectionBroken, transport_errors


class Stream:
    """A response whose body has not been read yet.

    Each read has its own deadline. httpx knows only one read timeout for the whole body and closes the connection when
    it expires, so `read` waits for a task of its own, which the next `read` continues to wait for.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.status, self.headers = response.status_code, response.headers
        self._response = response
        self._pieces = response.aiter_bytes()
        self._pending: asyncio.Task[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = False

    async def read(self, until: float) -> bytes:
        """The next bytes; none at the end. After a `TimeoutError` it can be called again."""
        if self._closed:
            raise ConnectionBroken("the response was closed")
        if self._pending is None:
            self._response.request.extensions["timeout"]["read"] = STALLED
            self._pending = self._loop.create_task(_next(self._pieces))
        await asyncio.wait({self._pending}, timeout=max(0.0, until - monotonic()))
        if not self._pending.done():
            raise TimeoutError
        piece, self._pending = self._pending, None
        with transport_errors():
            return piece.result()

    async def read_all(self, until: float) -> bytes:
        """The rest of the body. The connection is closed if that fails."""
        parts = []
        try:
            with transport_errors():
                async for piece in self._pieces:
                    parts.append(piece)
                    if monotonic() > until:
                        raise TimeoutError
        except BaseException:
            self.close()
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Closes the connection, unless the body was read to its end. Can be called from any thread."""
        if self._closed:
            return
        self._closed = True
        if not self._response.is_closed:
            # The loop may have been closed, with its connections.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_close_soon, self._loop, self._response, self._pending)

    def __del__(self) -> None:
        self.close()


async def _next(pieces: AsyncIterator[bytes]) -> bytes:
    """The next piece. A function, as a task that referred to the stream would keep it from being collected."""
    return await anext(pieces, b"")


#: The event loop keeps only weak references to tasks.
_closing: set[asyncio.Task[None]] = set()


def _close_soon(loop: asyncio.AbstractEventLoop, response: httpx.Response, pending: asyncio.Task[bytes] | None) -> None:
    task = loop.create_task(_close(response, pending))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close(response: httpx.Response, pending: asyncio.Task[bytes] | None) -> None:
    if pending is not None:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
    with suppress(httpx.TransportError):
        await response.aclose()
