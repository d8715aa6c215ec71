# Made from _async/door.py by generate.py.
"""The way to one sandbox. Whatever is asked about it goes through here: the place to choose another address, for
servers whose workers can be asked directly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from .. import _websocket
from .._deadline import Deadline
from .._http import Body, Broken, Call, Reader, segment
from .._patience import Patience
from .._sse import Events, Message
from ..errors import UnexpectedAnswer, from_answer
from .client import _AWAY, Answer, Client, Stream, encoded
from .network import Connection, Lock, sleep

#: Who says nothing for so long is gone: streams say something every 15 s, and WebSockets every 30.
SILENCE = 50.0


def silent() -> Broken:
    """A server that says nothing is as good as gone: how long that may last is a matter of patience."""
    return Broken("the server says nothing any more")


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
            cursor = answer.head.headers.get("x-next-cursor")
            if cursor is None:
                return found
            query = {"cursor": cursor}

    def events(
        self, path: str, what: str, query: Mapping[str, object], after: str | None, anew: str | None = None
    ) -> EventStream:
        """Follows a stream about the sandbox; `anew` is the event that tells that it had to begin again."""
        call = Call("GET", self.path + path, f"{what} in {self.id}", query, repeat=True)
        return EventStream(self.client, call, after, anew)

    def socket(self, path: str, what: str, deadline: Deadline) -> Socket:
        """Opens a WebSocket. What breaks is an `Broken`."""
        return Socket.open(self.client, Call("GET", self.path + path, f"{what} in {self.id}"), deadline.until)


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
                elif data := self._stream.read(min(until, monotonic() + SILENCE)):
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


class Socket:
    """A WebSocket. One may read while another writes."""

    def __init__(self, connection: Connection, rest: bytes) -> None:
        self._connection, self._frames = connection, _websocket.Frames(rest)
        self._sending = Lock()
        #: Somebody waits for what comes, and notices the end.
        self._reading = False

    @classmethod
    def open(cls, client: Client, call: Call, until: float) -> Socket:
        """Connects and shakes hands; a refusal that is told is raised."""
        key = _websocket.key()
        wanted = {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": key,
        }
        call = Call("GET", call.path, call.what, call.query, headers=wanted)
        connection = client.connect(until)
        try:
            client._send(connection, call, until)
            reader = Reader()
            while (head := reader.read_head()) is None:
                reader.feed(connection.receive(until))
            client._reached |= head.status not in _AWAY
            if head.status == 101:
                if not _websocket.accepts(key, head.headers.get("sec-websocket-accept")):
                    raise UnexpectedAnswer(f"{client.url} did not answer as WebSockets do")
                return cls(connection, reader.rest())
            stream = Stream(client, connection, reader, head)
            raise client.refused(Answer(head, stream.read_all(until)))
        except BaseException:
            connection.close()
            raise

    def receive(self, until: float) -> _websocket.Message:
        """The next message, or the close."""
        while True:
            while (message := self._frames.next()) is None:
                self._reading = True
                try:
                    self._feed(self._connection.receive(min(until, monotonic() + SILENCE)))
                finally:
                    self._reading = False
            if message.kind == _websocket.PING:
                self.send(_websocket.PONG, message.data, until)
            elif message.kind != _websocket.PONG:
                return message

    def _feed(self, data: bytes) -> None:
        if not data:
            raise Broken("the connection was closed")
        self._frames.feed(data)

    def look(self) -> None:
        """Notices a connection that has ended: what is sent on one is lost without a word."""
        while not self._reading and (data := self._connection.receive_now()) is not None:
            self._feed(data)

    def send(self, kind: int, data: bytes, until: float) -> None:
        """Sends a message."""
        with self._sending:
            self._connection.send(_websocket.frame(kind, data), until)

    def leave(self) -> None:
        """Says goodbye and goes."""
        try:
            self.send(_websocket.CLOSE, (1000).to_bytes(2, "big"), monotonic() + 1.0)
        except (Broken, TimeoutError):
            pass
        self.close()

    def close(self) -> None:
        """Ends it at once."""
        self._connection.close()
