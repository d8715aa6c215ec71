"""What differs between the two kinds of programs: here, connections of an event loop. `_sync/network.py` is the same
for programs that wait."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from .._http import broken

if TYPE_CHECKING:
    from ssl import SSLContext

T = TypeVar("T")

#: Is told things as they happen.
Listener = Callable[[T], Awaitable[None] | None]

Lock = asyncio.Lock
sleep = asyncio.sleep

#: How much is read at once.
_PIECE = 64 << 10


async def tell(listener: Listener[T], value: T) -> None:
    """Calls it, and waits for it if it is something to wait for."""
    waiting = listener(value)
    if waiting is not None:
        await waiting


async def blocking(work: Callable[..., T], *arguments: Any) -> T:
    """Does what may take a moment somewhere else."""
    return await asyncio.to_thread(work, *arguments)


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Does something else while the block goes on; what is left of it then is given up."""
    task = asyncio.ensure_future(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _until(until: float) -> AsyncIterator[None]:
    """Bounds what is waited for, and tells failures of the system as ours."""
    try:
        async with asyncio.timeout(max(0.0, until - monotonic())):
            yield
    except TimeoutError:
        raise
    except OSError as error:
        raise broken(error) from error


class Connection:
    """Bytes to and from a server. A wait that comes to its end is a `TimeoutError`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        #: Since when nobody has used it.
        self.idle_since = 0.0

    @classmethod
    async def open(cls, at: str | tuple[str, int], tls: SSLContext | None, until: float) -> Connection:
        """Connects to a host's port, or to a socket by its path."""
        async with _until(until):
            if isinstance(at, str):
                return cls(*await asyncio.open_unix_connection(at, limit=_PIECE))
            reader, writer = await asyncio.open_connection(*at, ssl=tls, limit=_PIECE)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(reader, writer)

    async def send(self, data: bytes, until: float) -> None:
        """Sends all of it."""
        async with _until(until):
            self._writer.write(data)
            await self._writer.drain()

    async def receive(self, until: float) -> bytes:
        """What comes next; nothing is the end."""
        async with _until(until):
            return await self._reader.read(_PIECE)

    async def receive_now(self) -> bytes | None:
        """What has come already, if anything has."""
        try:
            return await self.receive(monotonic())
        except TimeoutError:
            return None

    def usable(self) -> bool:
        """Whether it is there still, and of this event loop."""
        return self._loop is asyncio.get_running_loop() and not self._writer.is_closing() and not self._reader.at_eof()

    def close(self) -> None:
        """Ends it, from wherever that is."""
        if self._loop.is_closed():
            return
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._writer.close()
        else:
            # Its own loop ends it; one that is closed just now has.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._writer.close)

    def __del__(self) -> None:
        # The loop would keep it for whoever left an iteration half-way, and the server would wait for them.
        self.close()
