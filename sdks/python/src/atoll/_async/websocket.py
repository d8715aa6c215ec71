"""WebSockets: terminals and tunnels. `_sync/websocket.py` is the sync half."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from .. import _deadline
from .._transport import Call, ConnectionBroken, SocketClosed, Unreachable, silent
from ..errors import UnexpectedAnswer

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import ConnectionClosed

    from .client import AsyncClient

#: Maximum size of a received message, in bytes; the server sends smaller ones.
_LARGEST = 64 << 20


class WebSocket:
    """A WebSocket. One task may receive while another sends."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, client: AsyncClient, call: Call, until: float) -> WebSocket:
        """Connects. An error response is raised as its `AtollError`."""
        # Imported here, as most programs need no WebSocket.
        from websockets.asyncio.client import connect, unix_connect
        from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidStatus, ProxyError

        from .client import Response

        address = client._address
        # `ws` for `http`, and `wss` for `https`.
        url = address.base.replace("http", "ws", 1) + call.target()
        options: dict[str, Any] = {
            "additional_headers": client._headers,
            "user_agent_header": None,
            "compression": None,
            "open_timeout": max(0.0, until - monotonic()),
            # `receive` finds out whether the server is alive.
            "ping_interval": None,
            "max_size": _LARGEST,
        }
        try:
            if address.socket:
                connection = await unix_connect(address.socket, url, **options)
            else:
                tls = client._tls if address.secure else None
                proxy: Literal[True] | None = True if address.proxied else None
                connection = await connect(url, ssl=tls, proxy=proxy, **options)
        except InvalidStatus as error:
            response = error.response
            client._saw(response.status_code)
            raise client.parse_error(
                Response(response.status_code, response.headers, bytes(response.body or b""))
            ) from None
        except ProxyError as error:
            raise Unreachable(str(error)) from error
        except InvalidMessage as error:
            raise ConnectionBroken(f"the connection was closed without a response: {error}") from error
        except InvalidHandshake as error:
            raise UnexpectedAnswer(f"{client.url} did not accept the WebSocket: {error}") from None
        except TimeoutError:
            raise
        except ConnectionResetError as error:
            raise ConnectionBroken(error.strerror or "the connection was reset") from error
        except (OSError, ssl.SSLError) as error:
            raise Unreachable(str(error)) from error
        client._saw(101)
        return cls(connection)

    async def receive(self, until: float) -> bytes:
        """The next message. `SocketClosed` if the server ended the connection, and `ConnectionBroken` if it broke."""
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                wait = min(until - monotonic(), _deadline.SILENCE / 2)
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, wait)):
                        return await self._connection.recv(decode=False)
                if monotonic() >= until:
                    raise TimeoutError
                await self._ping()
        except ConnectionClosed as error:
            raise _closed(error) from None

    async def _ping(self) -> None:
        """Raises `ConnectionBroken` if the server does not answer a ping."""
        answered = await self._connection.ping()
        try:
            async with asyncio.timeout(_deadline.SILENCE / 2):
                await answered
        except TimeoutError:
            raise silent() from None

    async def send(self, data: bytes, until: float) -> None:
        """Sends a binary message."""
        from websockets.exceptions import ConnectionClosed

        try:
            async with asyncio.timeout(max(0.0, until - monotonic())):
                await self._connection.send(data)
        except ConnectionClosed as error:
            raise ConnectionBroken(str(_closed(error)) or "the connection was closed") from None

    def close(self) -> None:
        """Closes the connection. Can be called from any thread."""
        # The loop may have been closed, with its connections.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._connection.transport.close)

    def __del__(self) -> None:
        self.close()


def _closed(error: ConnectionClosed) -> Exception:
    if error.rcvd is not None:
        return SocketClosed(error.rcvd.code, error.rcvd.reason)
    return ConnectionBroken("the connection was closed")
