"""HTTP client of an Atoll server: a connection pool, retries and deadlines.

A request whose response is lost is sent again only if it is idempotent (`Call.repeat`). The client waits for a server
that responded before, as it may be restarting; a server that never responded is an error at once.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import httpx

from .. import _config
from .._data import PIECE, in_pieces
from .._deadline import Deadline
from .._retry import RetryPolicy
from .._transport import Body, Call, ConnectionBroken, Unreachable, is_certificate_error, transport_errors
from .._version import VERSION
from ..errors import AtollError, ConnectionFailed, RateLimited, UnexpectedAnswer, from_response
from .concurrency import blocking, connection_scope, sleep, tell
from .stream import Stream

if TYPE_CHECKING:
    from ssl import SSLContext

#: Idle connections are closed after 20 s: the server closes them after 30.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=20.0)
#: Statuses with which a proxy responds when it cannot reach the server.
_AWAY = (502, 503, 504)


class Response:
    """A response with all of its body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        """The body as JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise UnexpectedAnswer(
                f"the response is not JSON: {self.body[:60]!r}",
                remedy="check whether the URL is that of an Atoll server",
            ) from None


class _Away(ConnectionBroken):
    """A proxy responded that it does not reach the server."""

    def __init__(self, error: AtollError) -> None:
        super().__init__(error.message)
        self.error = error


class AsyncClient:
    """A connection to an Atoll server.

    All parameters are optional. By default the client uses `ATOLL_URL` and `ATOLL_API_KEY`, then the default profile of
    `atoll login`, then the local server (`http://127.0.0.1:8080`). Without an API key, requests have no credential. The
    client uses the proxies of the environment (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`), except for
    servers on this machine.

    Args:
        url: The server's URL, such as `http://127.0.0.1:8080`, or `unix:///PATH` for a Unix socket.
        api_key: The API key, `atl_…`.
        profile: The name of a profile of `atoll login`.
        timeout: Default timeout of a request, in seconds.
        reconnect: How long requests are retried while a server that responded before is unreachable, in seconds.
        ssl_context: TLS settings for `https://`. By default the client trusts the certificates in the file
            `ATOLL_CA_FILE`, or those of the system.
        http_client: A custom `httpx.AsyncClient` for all requests, with its proxies, certificates and transport. The
            caller closes it. Terminals and forwards are WebSockets and do not use it: they use `ssl_context` and the
            proxies of the environment.
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
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        self._address = address = _config.find(url, api_key, profile)
        self.timeout, self.reconnect = timeout, reconnect
        self._tls = ssl_context or _config.tls(address)
        # Without compression: positions and progress count the bytes of the body.
        self._headers = {"user-agent": f"atoll-python/{VERSION}", "accept-encoding": "identity"}
        if address.key:
            self._headers["x-api-key"] = address.key
        self._http_client = http_client
        #: One HTTP client for each event loop, unless the caller provides one.
        self._pools: WeakKeyDictionary[object, httpx.AsyncClient] = WeakKeyDictionary()
        self._process = os.getpid()
        self._reached = False

    @classmethod
    def default(cls) -> AsyncClient:
        """The client of calls without a `client`. It is created with the first such call."""
        with cls._default_lock:
            if cls._default is None:
                cls._default = cls()
            return cls._default

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._address.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes idle connections, except those of a custom `http_client`. The client stays usable."""
        pool = self._pools.pop(connection_scope(), None)
        if pool is not None:
            await pool.aclose()

    # The methods below are for the other modules of this package.

    async def request(self, call: Call) -> Response:
        """Sends a request and reads all of the response. An error response is raised."""
        deadline = Deadline(call.timeout or self.timeout, call.what)
        retry = RetryPolicy(self.reconnect)
        lost = False
        while True:
            try:
                stream = await self._exchange(call, deadline.until)
                response = Response(stream.status, stream.headers, await stream.read_all(deadline.until))
                if response.status < 400:
                    return response
                failure = self.parse_error(response)
            except TimeoutError:
                raise deadline.exceeded() from None
            except ConnectionBroken as error:
                lost |= not isinstance(error, Unreachable)
                await self.pause(call, error, retry, deadline)
                continue
            if lost and call.method == "DELETE" and response.status == 404:
                # The response that was lost confirmed the deletion.
                return response
            await self._later(failure, deadline.until)

    async def open(self, call: Call, until: float) -> Stream:
        """Sends a request once and leaves the body to be read. Raises `ConnectionBroken` if the connection fails."""
        while True:
            stream = await self._exchange(call, until)
            if stream.status < 400:
                return stream
            response = Response(stream.status, stream.headers, await stream.read_all(until))
            await self._later(self.parse_error(response), until)

    async def _later(self, failure: AtollError, until: float) -> None:
        """Waits if the rate limit was exceeded; any other failure is raised."""
        wait = failure.retry_after or 1.0
        if not isinstance(failure, RateLimited) or until - monotonic() <= wait:
            raise failure
        await sleep(wait)

    async def pause(self, call: Call, error: ConnectionBroken, retry: RetryPolicy, deadline: Deadline) -> None:
        """Waits before the next attempt, if there may be one."""
        unreachable = isinstance(error, Unreachable)
        if (call.repeat or unreachable) and self._reached:
            wait = retry.pause()
            if wait is not None and wait < deadline.left():
                await sleep(wait)
                return
        raise self.broken(call, error) from error.__cause__

    def broken(self, call: Call, error: ConnectionBroken) -> AtollError:
        """The error for a connection that failed for good."""
        if isinstance(error, _Away):
            return error.error
        if isinstance(error, Unreachable):
            remedy = "check the URL (ATOLL_URL), or start a server there with `atoll serve`"
            if is_certificate_error(error):
                remedy = "a private certificate is trusted with ATOLL_CA_FILE; use http:// for a server without TLS"
            return ConnectionFailed(f"{call.what}: no server answers at {self.url}: {error}", remedy=remedy)
        if call.repeat:
            return ConnectionFailed(f"{call.what}: the connection to {self.url} breaks again and again: {error}")
        return ConnectionFailed(
            f"{call.what}: the connection to {self.url} broke, and it is not known whether it was done: {error}",
            remedy="check the result before you try again",
        )

    def parse_error(self, response: Response) -> AtollError:
        """The error of an error response; that of a proxy without a server is raised as `ConnectionBroken`."""
        try:
            body = json.loads(response.body)
        except ValueError:
            body = None
        if not isinstance(body, dict) or "code" not in body:
            unexpected = UnexpectedAnswer(
                f"{self.url} answered {response.status} without an Atoll error",
                status=response.status,
                remedy="check whether the URL is that of an Atoll server",
            )
            if response.status in _AWAY:
                raise _Away(unexpected)
            return unexpected
        return from_response(response.status, body, response.headers.get("x-request-id"))

    async def _exchange(self, call: Call, until: float) -> Stream:
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        headers, content = {**self._headers, **call.headers}, None
        if call.body is not None:
            headers["content-type"] = call.kind
            content = call.body if isinstance(call.body, bytes) and len(call.body) <= PIECE else _pieces(call, until)
            if isinstance(call.body, bytes):
                headers["content-length"] = str(len(call.body))
        http = self._http_client or self._pool()
        # A new dictionary for each request: `Stream` sets another timeout for the body.
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), left)
        with transport_errors():
            request = http.build_request(
                call.method,
                self._address.base + call.target(),
                headers=headers,
                content=content,
                extensions={"timeout": timeouts},
            )
            response = await http.send(request, stream=True)
        self._saw(response.status_code)
        return Stream(response)

    def _saw(self, status: int) -> None:
        """Notes that the server responded, unless the response is that of a proxy."""
        self._reached |= status not in _AWAY

    def _pool(self) -> httpx.AsyncClient:
        if self._process != os.getpid():
            # A forked process must not use the same connections.
            self._pools, self._process = WeakKeyDictionary(), os.getpid()
        scope = connection_scope()
        return self._pools.get(scope) or self._pools.setdefault(scope, self._new_pool())

    def _new_pool(self) -> httpx.AsyncClient:
        address = self._address
        if address.socket:
            transport = httpx.AsyncHTTPTransport(verify=self._tls, limits=_LIMITS, uds=address.socket)
            return httpx.AsyncClient(transport=transport)
        return httpx.AsyncClient(verify=self._tls, limits=_LIMITS, trust_env=address.proxied)


async def _pieces(call: Call, until: float) -> AsyncIterator[bytes]:
    """Yields the body in pieces and reports the bytes sent. Large bytes are split too: httpcore would copy the rest of
    them with each `send` system call."""
    assert call.body is not None
    pieces, done = in_pieces(call.body)(), 0
    while (piece := await blocking(next, pieces, None)) is not None:
        if monotonic() > until:
            raise TimeoutError
        if piece:
            yield piece
            done += len(piece)
            if call.on_sent is not None:
                await tell(call.on_sent, done)


def encoded(body: Mapping[str, Any]) -> Body:
    """A JSON body, without values that are `None`."""
    given = {name: value for name, value in body.items() if value is not None}
    return json.dumps(given, separators=(",", ":")).encode()
