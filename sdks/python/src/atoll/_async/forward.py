"""Local port forwarding to a sandbox. `_sync/forward.py` runs it on a loop in a thread."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic

from .._deadline import FOREVER, Deadline
from .._transport import ConnectionBroken, SocketClosed
from ..errors import AtollError, ConnectionFailed
from .sandbox_api import AsyncSandboxApi
from .websocket import WebSocket

#: Maximum size of a message, in bytes.
_PIECE = 64 << 10
#: Connect timeout, in seconds.
_DIAL = 30.0


class AsyncForward:
    """A local port that is forwarded to a port of a sandbox.

    Attributes:
        host: The local address.
        port: The local port.
        remote_port: The port in the sandbox.
        last_error: The error of the last connection that failed, such as a port without a listener.
    """

    def __init__(self, api: AsyncSandboxApi, remote_port: int, host: str) -> None:
        self._api = api
        self.host, self.port, self.remote_port = host, 0, remote_port
        self.last_error: AtollError | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, api: AsyncSandboxApi, remote_port: int, local_port: int, host: str) -> AsyncForward:
        """Starts listening."""
        forward = cls(api, remote_port, host)
        server = await asyncio.start_server(forward._begin, host, local_port)
        forward._server, forward.port = server, server.sockets[0].getsockname()[1]
        return forward

    @property
    def url(self) -> str:
        """The port as a URL."""
        return f"http://{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.host}:{self.port} to {self.remote_port} in {self._api.id}>"

    async def __aenter__(self) -> AsyncForward:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops listening and ends the open connections."""
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
            deadline = Deadline(_DIAL, f"connecting to port {self.remote_port} in {self._api.id}")
            socket = await self._api.socket(f"/ports/{self.remote_port}/tunnel", "a tunnel", deadline)
            async with asyncio.TaskGroup() as both:
                up = both.create_task(self._up(reader, socket))
                await self._down(socket, writer)
                up.cancel()
        except* AtollError as failures:
            self.last_error = next(one for one in failures.exceptions if isinstance(one, AtollError))
            writer.transport.abort()
        except* OSError as failures:
            self.last_error = ConnectionFailed(f"port {self.remote_port} in {self._api.id}: {failures.exceptions[0]}")
            writer.transport.abort()
        finally:
            if socket is not None:
                socket.close()
            with suppress(OSError):
                writer.close()

    async def _up(self, reader: asyncio.StreamReader, socket: WebSocket) -> None:
        # `_down` finds out why the tunnel was closed, after everything that came before.
        with suppress(ConnectionBroken):
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
