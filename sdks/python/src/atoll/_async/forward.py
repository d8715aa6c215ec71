"""A sandbox's port as a port of this machine. `_sync/forward.py` runs it on a loop in a thread."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic

from .._deadline import FOREVER, Deadline
from .._transport import Broken, SocketClosed
from ..errors import AtollError, ConnectionFailed
from .door import AsyncDoor
from .websocket import WebSocket

#: How much goes in one message.
_PIECE = 64 << 10
#: How long a connection to the sandbox may take.
_DIAL = 30.0


class AsyncForward:
    """A port of this machine that leads into a sandbox.

    Attributes:
        host: Where this machine listens.
        port: On this machine.
        remote_port: In the sandbox.
        last_error: Why the last connection that failed did, if one has: nobody may listen in the sandbox.
    """

    def __init__(self, door: AsyncDoor, remote_port: int, host: str) -> None:
        self._door = door
        self.host, self.port, self.remote_port = host, 0, remote_port
        self.last_error: AtollError | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, door: AsyncDoor, remote_port: int, local_port: int, host: str) -> AsyncForward:
        """Begins to listen."""
        forward = cls(door, remote_port, host)
        server = await asyncio.start_server(forward._begin, host, local_port)
        forward._server, forward.port = server, server.sockets[0].getsockname()[1]
        return forward

    @property
    def url(self) -> str:
        """The port as a URL."""
        return f"http://{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.host}:{self.port} to {self.remote_port} in {self._door.id}>"

    async def __aenter__(self) -> AsyncForward:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Listens no more, and ends the connections that there are."""
        if self._server is not None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket = None
        try:
            deadline = Deadline(_DIAL, f"connecting to port {self.remote_port} in {self._door.id}")
            socket = await self._door.socket(f"/ports/{self.remote_port}/tunnel", "a tunnel", deadline)
            async with asyncio.TaskGroup() as both:
                up = both.create_task(self._up(reader, socket))
                await self._down(socket, writer)
                up.cancel()
        except* AtollError as failures:
            self.last_error = next(one for one in failures.exceptions if isinstance(one, AtollError))
            writer.transport.abort()
        except* OSError as failures:
            self.last_error = ConnectionFailed(f"port {self.remote_port} in {self._door.id}: {failures.exceptions[0]}")
            writer.transport.abort()
        finally:
            if socket is not None:
                socket.close()
            with suppress(OSError):
                writer.close()

    async def _up(self, reader: asyncio.StreamReader, socket: WebSocket) -> None:
        # `_down` finds out why the tunnel was closed, after everything that came before.
        with suppress(Broken):
            while data := await reader.read(_PIECE):
                await socket.send(data, monotonic() + FOREVER)
            await socket.send(b"", monotonic() + FOREVER)

    async def _down(self, socket: WebSocket, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                data = await socket.receive(monotonic() + FOREVER)
            except SocketClosed as closed:
                if closed.code != 1000:
                    raise ConnectionFailed(closed.reason) from None
                return
            if data:
                writer.write(data)
                await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()
