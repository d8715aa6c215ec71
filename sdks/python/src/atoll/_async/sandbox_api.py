"""Requests to the routes of one sandbox. All calls about a sandbox use this module, so that another address for a
sandbox can be chosen in one place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from .. import _deadline
from .._deadline import Deadline
from .._retry import RetryPolicy
from .._sse import Events, Message
from .._transport import Body, Call, ConnectionBroken, segment, silent
from ..errors import from_response
from .client import AsyncClient, Response, encoded
from .concurrency import sleep
from .stream import Stream
from .websocket import WebSocket


class AsyncSandboxApi:
    """The part of the API below `/sandboxes/ID`."""

    def __init__(self, client: AsyncClient, id: str) -> None:
        self.client, self.id = client, id
        self.path = f"/sandboxes/{segment(id)}"

    async def request(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, object] | None = None,
        json: Mapping[str, Any] | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool | None = None,
        timeout: float | None = None,
        on_sent: Callable[[int], Any] | None = None,
    ) -> Response:
        """Sends a request. By default, GET, DELETE and PUT requests are retried."""
        call = Call(
            method,
            self.path + path,
            f"{what} in {self.id}",
            query or {},
            encoded(json) if json is not None else body,
            "application/json" if json is not None else "application/octet-stream",
            headers or {},
            method in ("GET", "DELETE", "PUT") if repeat is None else repeat,
            timeout,
            on_sent,
        )
        return await self.client.request(call)

    async def pages(self, path: str, what: str) -> list[Any]:
        """Fetches all pages of a list."""
        found: list[Any] = []
        query: dict[str, object] = {}
        while True:
            response = await self.request("GET", path, what, query=query)
            found += response.json()
            cursor = response.headers.get("x-next-cursor")
            if cursor is None:
                return found
            query = {"cursor": cursor}

    def events(
        self, path: str, what: str, query: Mapping[str, object], after: str | None, anew: str | None = None
    ) -> EventStream:
        """Opens an event stream. `anew` names the event to insert after each reconnection."""
        call = Call("GET", self.path + path, f"{what} in {self.id}", query, repeat=True)
        return EventStream(self.client, call, after, anew)

    async def socket(self, path: str, what: str, deadline: Deadline) -> WebSocket:
        """Opens a WebSocket. Raises `ConnectionBroken` if the connection fails."""
        return await WebSocket.open(self.client, Call("GET", self.path + path, f"{what} in {self.id}"), deadline.until)


class EventStream:
    """Server-sent events, resumed at the same position after a broken connection or a restart of the server."""

    def __init__(self, client: AsyncClient, call: Call, after: str | None, anew: str | None) -> None:
        self._client, self._call, self._after, self._anew = client, call, after, anew
        self._stream: Stream | None = None
        self._events = Events()
        self._waiting: deque[Message] = deque()
        self._retry = RetryPolicy(client.reconnect)
        self._begun = False

    async def next(self, until: float) -> Message:
        """Returns the next event. Raises `TimeoutError` if none arrives until then; the stream stays usable."""
        while not self._waiting:
            try:
                if self._stream is None:
                    await self.begin(until)
                elif data := await self._stream.read(min(until, monotonic() + _deadline.SILENCE)):
                    self._retry.progress()
                    self._waiting.extend(one for one in self._events.feed(data) if one.event != "ping")
                else:
                    raise ConnectionBroken("the stream ended before its last event")
            except TimeoutError:
                if monotonic() >= until:
                    raise
                await self._pause(silent(), until)
            except ConnectionBroken as error:
                await self._pause(error, until)
        message = self._waiting.popleft()
        self._after = message.id or self._after
        if message.event == "error":
            raise from_response(200, message.data, None)
        return message

    async def begin(self, until: float) -> None:
        """Opens the stream at the current position."""
        query = dict(self._call.query) | ({"after": self._after} if self._after is not None else {})
        call = Call("GET", self._call.path, self._call.what, query, repeat=True)
        until = min(until, monotonic() + self._client.timeout)
        while self._stream is None:
            try:
                self._stream = await self._client.open(call, until)
            except ConnectionBroken as error:
                await self._pause(error, until)
        self._events = Events()
        if self._begun and self._anew is not None:
            self._waiting.append(Message(self._anew, {}, None))
        self._begun = True

    async def _pause(self, error: ConnectionBroken, until: float) -> None:
        self.close()
        wait = self._retry.pause() if self._client._reached else None
        if wait is None:
            raise self._client.broken(self._call, error) from error.__cause__
        await sleep(min(wait, max(0.0, until - monotonic())))

    def close(self) -> None:
        """Closes the connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
