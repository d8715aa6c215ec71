"""Requests and connection failures, as the sync and the async half share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import httpx

#: A request body: bytes, or a function that returns its pieces and is called again for each attempt.
Body = bytes | Callable[[], Iterator[bytes]]


class ConnectionBroken(OSError):
    """A connection failed, or the peer does not speak HTTP."""


class Unreachable(ConnectionBroken):
    """The connection could not be established: no part of the request was sent."""


class SocketClosed(Exception):
    """The server closed a WebSocket with a close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def silent() -> ConnectionBroken:
    """The idle timeout expired. The client's `reconnect` limits how long that may last."""
    return ConnectionBroken("the server says nothing any more")


@contextmanager
def transport_errors() -> Iterator[None]:
    """Raises the errors of httpx as `TimeoutError`, `Unreachable` or `ConnectionBroken`."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise TimeoutError(str(error)) from error
    except (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol) as error:
        raise Unreachable(str(error)) from error
    except (httpx.TransportError, httpx.StreamError) as error:
        raise ConnectionBroken(str(error) or type(error).__name__) from error


def is_certificate_error(error: BaseException | None) -> bool:
    """Whether TLS is why a connection failed. httpx and httpcore each wrap the error of the `ssl` module."""
    while error is not None:
        if type(error).__module__ == "ssl":
            return True
        error = error.__cause__ or error.__context__
    return False


@dataclass(slots=True)
class Call:
    """A request.

    `what` describes it in error messages. `repeat` means that it is idempotent: it is sent again if its response is
    lost.
    """

    method: str
    path: str
    what: str
    query: Mapping[str, object] = field(default_factory=dict)
    body: Body | None = None
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: bool = False
    #: In seconds; `None` uses the client's timeout.
    timeout: float | None = None
    #: Called with the number of bytes sent so far, for bodies that are sent in pieces. May return an awaitable.
    on_sent: Callable[[int], Any] | None = None

    def target(self) -> str:
        """Path and query; parameters that are `None` are left out."""
        given = {name: value for name, value in self.query.items() if value is not None}
        if not given:
            return self.path
        words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
        return f"{self.path}?{urlencode(words, quote_via=quote, safe='/')}"


def segment(name: str) -> str:
    """Quotes one path segment. Colons stay, as in `tag:NAME`."""
    return quote(name, safe=":") if name not in (".", "..") else name.replace(".", "%2E")
