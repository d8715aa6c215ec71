"""A server as this program sees it: connections that are kept, and what is asked over them.

What is lost is asked again only where that is safe: `Call.repeat`. A server that was there and is not any more may be
restarting, and is waited for; one that never was is told at once.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from .. import _config
from .._deadline import Deadline
from .._http import Body, Broken, Call, Head, Reader, chunk, head
from .._patience import Patience
from .._version import VERSION
from ..errors import AtollError, ConnectionFailed, RateLimited, UnexpectedAnswer, from_answer
from .network import Connection, blocking, sleep, tell

if TYPE_CHECKING:
    from ssl import SSLContext

#: A connection that nobody used for so long is not used again: the server lets go of them after 30 s.
_FRESH = 20.0
#: How many connections are kept for later.
_KEPT = 32
#: What a proxy answers when the server behind it does not.
_AWAY = (502, 503, 504)
#: How long an answer may still come from a server that does not take our request.
_LAST_WORD = 5.0


class Answer:
    """An answer with all of its body."""

    __slots__ = ("body", "head")

    def __init__(self, head: Head, body: bytes) -> None:
        self.head, self.body = head, body

    def json(self) -> Any:
        """The body as JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise UnexpectedAnswer(
                f"the answer is not JSON: {self.body[:60]!r}", remedy="look whether the URL is that of an Atoll server"
            ) from None


class Stream:
    """An answer whose body comes bit by bit. Its connection is kept once all of it was read."""

    def __init__(self, client: AsyncClient, connection: Connection, reader: Reader, head: Head) -> None:
        self._client, self._reader = client, reader
        self._connection: Connection | None = connection
        self.head = head

    async def read(self, until: float) -> bytes:
        """The next bytes; nothing at the end."""
        while (data := self._reader.read()) is None:
            if self._connection is None:
                raise Broken("the answer was closed")
            self._reader.feed(await self._connection.receive(until))
        if not data and self._connection is not None:
            if self._reader.reusable:
                self._client._keep(self._connection)
            else:
                self._connection.close()
            self._connection = None
        return data

    async def read_all(self, until: float) -> bytes:
        """All that is left. What comes to no end is let go of."""
        parts = []
        try:
            while data := await self.read(until):
                parts.append(data)
        except BaseException:
            self.close()
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Lets go of the rest."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Unreachable(Broken):
    """Nothing was sent."""


class _Away(Broken):
    """Something in between answered, and says that it does not reach the server."""

    def __init__(self, told: AtollError) -> None:
        super().__init__(told.message)
        self.told = told


class AsyncClient:
    """A server, and the key that it wants.

    Everything may be left out: then it is the server of `ATOLL_URL` with the key of `ATOLL_API_KEY`, that of the
    profile which `atoll login` made the default, or the one on this machine (`http://127.0.0.1:8080`). Without a key
    none is sent.

    Args:
        url: Where it is, such as `http://127.0.0.1:8080`, or `unix:///PATH` for a socket of this machine.
        api_key: `atl_…`.
        profile: The name of a profile of `atoll login`.
        timeout: How long a request may take, in seconds, if it is not said with it.
        reconnect: How long a server that was there may be away before that is a failure, in seconds.
        ssl_context: How servers are trusted (`https://`), if not by the certificates in the file that `ATOLL_CA_FILE`
            names, or else as this machine does.
    """

    _default: AsyncClient | None = None
    _default_lock = threading.Lock()

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        profile: str | None = None,
        timeout: float = 60.0,
        reconnect: float = 30.0,
        ssl_context: SSLContext | None = None,
    ) -> None:
        self._address = address = _config.find(url, api_key, profile)
        self.timeout, self.reconnect = timeout, reconnect
        self._tls = ssl_context
        if address.secure and ssl_context is None:
            self._tls = _config.trust()
        key = f"x-api-key: {address.key}\r\n" if address.key else ""
        self._common = f"host: {address.name}\r\nuser-agent: atoll-python/{VERSION}\r\n{key}"
        self._idle: deque[Connection] = deque()
        self._process = os.getpid()
        self._reached = False

    @classmethod
    def default(cls) -> AsyncClient:
        """The one that is used where none is named. It is made once."""
        with cls._default_lock:
            if cls._default is None:
                cls._default = cls()
            return cls._default

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._address.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections that are kept. It can be used again."""
        while self._idle:
            self._idle.pop().close()

    # What follows is for the other parts of this package.

    async def request(self, call: Call) -> Answer:
        """Asks, and reads all of the answer. A failure that it tells is raised."""
        deadline = Deadline(call.timeout or self.timeout, call.what)
        patience = Patience(self.reconnect)
        lost = False
        while True:
            try:
                stream = await self._exchange(call, deadline.until)
                answer = Answer(stream.head, await stream.read_all(deadline.until))
                if answer.head.status < 400:
                    return answer
                failure = self.refused(answer)
            except TimeoutError:
                raise deadline.exceeded() from None
            except Broken as error:
                lost |= not isinstance(error, _Unreachable)
                await self.pause(call, error, patience, deadline)
                continue
            if lost and call.method == "DELETE" and answer.head.status == 404:
                # The answer that was lost said that it is gone.
                return answer
            await self._later(failure, deadline.until)

    async def open(self, call: Call, until: float) -> Stream:
        """Asks once, and leaves the body to be read. What breaks is `Broken`."""
        while True:
            stream = await self._exchange(call, until)
            if stream.head.status < 400:
                return stream
            await self._later(self.refused(Answer(stream.head, await stream.read_all(until))), until)

    async def _later(self, failure: AtollError, until: float) -> None:
        """Waits, if it was only asked too early; whatever else it is is raised."""
        wait = failure.retry_after or 1.0
        if not isinstance(failure, RateLimited) or until - monotonic() <= wait:
            raise failure
        await sleep(wait)

    async def connect(self, until: float) -> Connection:
        """A new connection."""
        at = self._address
        try:
            return await Connection.open(at.socket or (at.host, at.port), self._tls, until)
        except Broken as error:
            raise _Unreachable(str(error)) from error.__cause__

    async def pause(self, call: Call, error: Broken, patience: Patience, deadline: Deadline) -> None:
        """Waits before the next try, if there may be one."""
        unreachable = isinstance(error, _Unreachable)
        if (call.repeat or unreachable) and self._reached:
            wait = patience.pause()
            if wait is not None and wait < deadline.left():
                await sleep(wait)
                return
        raise self.broken(call, error) from error.__cause__

    def broken(self, call: Call, error: Broken) -> AtollError:
        """What is said of a connection that failed for good."""
        if isinstance(error, _Away):
            return error.told
        if isinstance(error, _Unreachable):
            remedy = "look at the URL (ATOLL_URL), or start a server there with `atoll serve`"
            if type(error.__cause__).__module__ == "ssl":
                remedy = "a certificate of your own is trusted with ATOLL_CA_FILE; a server without one is http://"
            return ConnectionFailed(f"{call.what}: no server answers at {self.url}: {error}", remedy=remedy)
        if call.repeat:
            return ConnectionFailed(f"{call.what}: the connection to {self.url} breaks again and again: {error}")
        return ConnectionFailed(
            f"{call.what}: the connection to {self.url} broke, and it is not known whether it was done: {error}",
            remedy="look before you do it again",
        )

    def refused(self, answer: Answer) -> AtollError:
        """What an answer that is no success means; that of a proxy without a server is `Broken`."""
        try:
            told = json.loads(answer.body)
        except ValueError:
            told = None
        if not isinstance(told, dict) or "code" not in told:
            unexpected = UnexpectedAnswer(
                f"{self.url} answered {answer.head.status} without saying why",
                status=answer.head.status,
                remedy="look whether the URL is that of an Atoll server",
            )
            if answer.head.status in _AWAY:
                raise _Away(unexpected)
            return unexpected
        return from_answer(answer.head.status, told, answer.head.headers.get("x-request-id"))

    async def _exchange(self, call: Call, until: float) -> Stream:
        connection = self._kept() or await self.connect(until)
        reader = Reader()
        try:
            try:
                await self._send(connection, call, until)
            except Broken:
                # It may have said why it does not take any more.
                if not callable(call.body):
                    raise
                until = min(until, monotonic() + _LAST_WORD)
            while (head := reader.read_head()) is None:
                reader.feed(await connection.receive(until))
        except BaseException:
            connection.close()
            raise
        self._reached |= head.status not in _AWAY
        return Stream(self, connection, reader, head)

    async def _send(self, connection: Connection, call: Call, until: float) -> None:
        first = head(call, self._address.path, self._common)
        if call.body is None:
            await connection.send(first, until)
        elif isinstance(call.body, bytes):
            await connection.send(first + call.body, until)
        else:
            await connection.send(first, until)
            pieces, done = call.body(), 0
            while (piece := await blocking(next, pieces, None)) is not None:
                if piece:
                    await connection.send(chunk(piece), until)
                    done += len(piece)
                    if call.told is not None:
                        await tell(call.told, done)
            await connection.send(chunk(b""), until)

    def _keep(self, connection: Connection) -> None:
        connection.idle_since = monotonic()
        if len(self._idle) < _KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    def _kept(self) -> Connection | None:
        if self._process != os.getpid():
            # A copy of this process must not speak on the same connections.
            self._idle, self._process = deque(), os.getpid()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if monotonic() - connection.idle_since < _FRESH and connection.usable():
                return connection
            connection.close()
        return None


def encoded(body: Mapping[str, Any]) -> Body:
    """A JSON body, without what is not given."""
    given = {name: value for name, value in body.items() if value is not None}
    return json.dumps(given, separators=(",", ":")).encode()
