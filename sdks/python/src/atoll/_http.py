"""HTTP/1.1 as a client speaks it, without any I/O: requests become bytes, and bytes become answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

#: What a request carries: bytes, or something that makes them anew each time it is sent.
Body = bytes | Callable[[], Iterator[bytes]]

#: The longest head of an answer, and the longest line before a chunk.
_LONGEST = 64 << 10


class Broken(OSError):
    """A connection failed, or what came is no HTTP."""


def broken(error: OSError) -> Broken:
    """What a failure of the system's means here."""
    return Broken(error.strerror or str(error) or type(error).__name__)


@dataclass(slots=True)
class Call:
    """Something that is asked of the server.

    `what` says so to people, for messages. `repeat` means that asking twice does what asking once does, so that it may
    be asked again when an answer is lost.
    """

    method: str
    path: str
    what: str
    query: Mapping[str, object] = field(default_factory=dict)
    body: Body | None = None
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: bool = False
    #: In seconds; the client's if nothing is said.
    timeout: float | None = None
    #: Is told how many bytes of a body that is made as it goes have been sent; what it returns may be waited for.
    told: Callable[[int], Any] | None = None

    def target(self) -> str:
        """Path and query, without what is not given."""
        given = {name: value for name, value in self.query.items() if value is not None}
        if not given:
            return self.path
        words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
        return f"{self.path}?{urlencode(words, quote_via=quote, safe='/')}"


def segment(name: str) -> str:
    """A part of a path, whatever it is made of: it stays one part. A colon is the server's own sign (`tag:NAME`)."""
    return quote(name, safe=":") if name not in (".", "..") else name.replace(".", "%2E")


def head(call: Call, prefix: str, common: str) -> bytes:
    """The head of a request; `common` is what every head has."""
    lines = [f"{call.method} {prefix}{call.target()} HTTP/1.1\r\n", common]
    if isinstance(call.body, bytes):
        lines.append(f"content-type: {call.kind}\r\ncontent-length: {len(call.body)}\r\n")
    elif call.body is not None:
        lines.append(f"content-type: {call.kind}\r\ntransfer-encoding: chunked\r\n")
    elif call.method in ("POST", "PUT", "PATCH"):
        lines.append("content-length: 0\r\n")
    lines.extend(f"{name}: {value}\r\n" for name, value in call.headers.items())
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """A piece of a body whose length is not known before; none is its end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(slots=True)
class Head:
    """The beginning of an answer. Names are in small letters."""

    status: int
    headers: dict[str, str]


class Reader:
    """One answer, taken apart as its bytes come."""

    __slots__ = ("_buffer", "_chunked", "_left", "_over", "head", "reusable")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.head: Head | None = None
        #: The connection can take another request after this one.
        self.reusable = False
        self._chunked = False
        #: What is left of the body or of the chunk; `None` if only the end of the connection ends it.
        self._left: int | None = 0
        self._over = False

    def feed(self, data: bytes) -> None:
        """Takes what came; nothing at all is the end of the connection."""
        if data:
            self._buffer += data
        elif self._left is None and self.head:
            self._over = True
        else:
            raise Broken(
                "the connection was closed in the middle of an answer"
                if self._buffer or self.head
                else "the connection was closed without an answer"
            )

    def read_head(self) -> Head | None:
        """The head, once it is whole. Words in between (1xx) are left out, but the switch to another protocol."""
        while self.head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _LONGEST:
                    raise Broken("the head of the answer is too long")
                return None
            text = self._buffer[:end].decode("latin-1")
            del self._buffer[: end + 4]
            self.head = self._begin(text)
        return self.head

    def _begin(self, text: str) -> Head | None:
        first, *lines = text.split("\r\n")
        version, _, rest = first.partition(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0") or not rest[:3].isdigit():
            raise Broken("the answer is not HTTP/1.1")
        status = int(rest[:3])
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if status < 200 and status != 101:
            return None
        closing = "close" in headers.get("connection", "").lower() or version == "HTTP/1.0"
        self.reusable = not closing
        if status in (101, 204, 304):
            self._over = True
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._chunked = True
        elif (length := headers.get("content-length")) is not None:
            if not length.isdigit():
                raise Broken(f"{length!r} is not a length")
            self._left = int(length)
            self._over = self._left == 0
        else:
            self._left, self.reusable = None, False
        return Head(status, headers)

    def rest(self) -> bytes:
        """What came after the head, for what is no HTTP any more."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def read(self) -> bytes | None:
        """The next bytes of the body; `None` if more has to come first, and nothing at its end."""
        if self._chunked and self._left == 0 and not self._over:
            self._next_chunk()
        if self._over:
            return b""
        if not self._buffer or self._left == 0:
            return None
        take = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        data = bytes(self._buffer[:take])
        del self._buffer[:take]
        if self._left is not None:
            self._left -= take
            self._over = self._left == 0 and not self._chunked
        return data

    def _next_chunk(self) -> None:
        """Begins the next chunk, if what says how long it is has come."""
        # The end of the line after the chunk before.
        begin = 2 if self._buffer[:2] == b"\r\n" else 0
        end = self._buffer.find(b"\r\n", begin)
        if end < 0:
            if len(self._buffer) > _LONGEST:
                raise Broken("a chunk has no length")
            return
        digits = bytes(self._buffer[begin:end]).split(b";")[0].strip()
        if not digits or digits.strip(b"0123456789abcdefABCDEF"):
            raise Broken("a chunk has no length")
        length = int(digits, 16)
        if length == 0:
            # Trailers are nothing we ask for: the body is over at the empty line after them.
            end = self._buffer.find(b"\r\n\r\n", begin)
            if end >= 0:
                del self._buffer[: end + 4]
                self._over = True
            return
        del self._buffer[: end + 2]
        self._left = length
