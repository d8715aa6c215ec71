# Made from _async/door.py by generate.py.
"""The way to one sandbox. Whatever is asked about it goes through here: the place to choose another address, for
servers whose workers can be asked directly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from .. import _deadline
from .._deadline import Deadline
from .._patience import Patience
from .._sse import Events, Message
from .._transport import Body, Broken, Call, segment, silent
from ..errors import from_answer
from .client import Answer, Client, encoded
from .concurrency import sleep
from .stream import Stream
from .websocket import WebSocket


class Door:
    """A sandbox's own part of the API."""

    def __init__(self, client: Client, id: str) -> None:
        self.client, self.id = client, id
        self.path = f"/sandboxes/{segment(id)}"

    def ask(
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
        told: Callable[[int], Any] | None = None,
    ) -> Answer:
        """Asks something about the sandbox. Whatever only reads may be asked again."""
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
            told,
        )
        return self.client.request(call)

    def pages(self, path: str, what: str) -> list[Any]:
        """All of a list, page after page."""
        found: list[Any] = []
        query: dict[str, object] = {}
        while True:
            answer = self.ask("GET", path, what, query=query)
            found += answer.json()
            cursor = answer.headers.get("x-next-cursor")
            if cursor is None:
                return found
            query = {"cursor": cursor}

    def events(
        self, path: str, what: str, query: Mapping[str, object], after: str | None, anew: str | None = None
    ) -> EventStream:
        """Follows a stream about the sandbox; `anew` is the event that tells that it had to begin again."""
        call = Call("GET", self.path + path, f"{what} in {self.id}", query, repeat=True)
        return EventStream(self.client, call, after, anew)

    def socket(self, path: str, what: str, deadline: Deadline) -> WebSocket:
        """Opens a WebSocket. A failed connection is `Broken`."""
        return WebSocket.open(self.client, Call("GET", self.path + path, f"{what} in {self.id}"), deadline.until)


class EventStream:
    """Server-sent events that go on after a broken connection, or a restart of the server, where they were."""

    def __init__(self, client: Client, call: Call, after: str | None, anew: str | None) -> None:
        self._client, self._call, self._after, self._anew = client, call, after, anew
        self._stream: Stream | None = None
        self._events = Events()
        self._waiting: deque[Message] = deque()
        self._patience = Patience(client.reconnect)
        self._begun = False

    def next(self, until: float) -> Message:
        """The next one; a `TimeoutError` if none comes until then, and it goes on the next time."""
        while not self._waiting:
            try:
                if self._stream is None:
                    self.begin(until)
                elif data := self._stream.read(min(until, monotonic() + _deadline.SILENCE)):
                    self._patience.progress()
                    self._waiting.extend(one for one in self._events.feed(data) if one.event != "ping")
                else:
                    raise Broken("the stream ended before its last word")
            except TimeoutError:
                if monotonic() >= until:
                    raise
                self._pause(silent(), until)
            except Broken as error:
                self._pause(error, until)
        message = self._waiting.popleft()
        self._after = message.id or self._after
        if message.event == "error":
            raise from_answer(200, message.data, None)
        return message

    def begin(self, until: float) -> None:
        """Asks for it, from where it was."""
        query = dict(self._call.query) | ({"after": self._after} if self._after is not None else {})
        call = Call("GET", self._call.path, self._call.what, query, repeat=True)
        until = min(until, monotonic() + self._client.timeout)
        while self._stream is None:
            try:
                self._stream = self._client.open(call, until)
            except Broken as error:
                self._pause(error, until)
        self._events = Events()
        if self._begun and self._anew is not None:
            self._waiting.append(Message(self._anew, {}, None))
        self._begun = True

    def _pause(self, error: Broken, until: float) -> None:
        self.close()
        wait = self._patience.pause() if self._client._reached else None
        if wait is None:
            raise self._client.broken(self._call, error) from error.__cause__
        sleep(min(wait, max(0.0, until - monotonic())))

    def close(self) -> None:
        """Lets go of the connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
