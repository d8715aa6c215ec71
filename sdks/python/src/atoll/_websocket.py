"""WebSockets as a client speaks them (RFC 6455), without any I/O and without extensions."""

from __future__ import annotations

import os
from base64 import b64encode
from dataclasses import dataclass

from ._http import Broken

_CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
#: More than the server sends in one message.
_LARGEST = 64 << 20


def key() -> str:
    """A new key for a handshake."""
    return b64encode(os.urandom(16)).decode()


def accepts(key: str, answer: str | None) -> bool:
    """Whether the answer is one to this key."""
    # Takes a while to import, for what few programs need.
    from hashlib import sha1

    digest = sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode(), usedforsecurity=False).digest()
    return answer == b64encode(digest).decode()


def _masked(data: bytes, mask: bytes) -> bytes:
    length = len(data)
    pattern = (mask * (length // 4 + 1))[:length]
    # Whole numbers are as fast as it gets without a compiler.
    return (int.from_bytes(data, "little") ^ int.from_bytes(pattern, "little")).to_bytes(length, "little")


def frame(kind: int, data: bytes) -> bytes:
    """A message in one frame."""
    length = len(data)
    if length < 126:
        size = bytes([0x80 | length])
    elif length < 1 << 16:
        size = b"\xfe" + length.to_bytes(2, "big")
    else:
        size = b"\xff" + length.to_bytes(8, "big")
    mask = os.urandom(4)
    return bytes([0x80 | kind]) + size + mask + _masked(data, mask)


@dataclass(slots=True)
class Message:
    """What was sent to us; of a close, its `code` and the reason as `data`."""

    kind: int
    data: bytes
    code: int = 0


class Frames:
    """Takes bytes, gives messages."""

    __slots__ = ("_buffer", "_kind", "_parts")

    def __init__(self, first: bytes = b"") -> None:
        self._buffer = bytearray(first)
        self._parts = bytearray()
        self._kind = _CONTINUED

    def feed(self, data: bytes) -> None:
        """Takes what came."""
        self._buffer += data

    def next(self) -> Message | None:
        """The next message, once it is whole."""
        while (taken := self._frame()) is not None:
            last, kind, data = taken
            if kind == CLOSE:
                return Message(CLOSE, data[2:], int.from_bytes(data[:2], "big") if len(data) > 1 else 1005)
            if kind in (PING, PONG):
                return Message(kind, data)
            if kind != _CONTINUED:
                self._kind, self._parts = kind, bytearray()
            self._parts += data
            if len(self._parts) > _LARGEST:
                raise Broken("a message is too large")
            if last:
                return Message(self._kind, bytes(self._parts))
        return None

    def _frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, length, begin = buffer[0], buffer[1], 2
        if first & 0x70 or length & 0x80:
            raise Broken("what came is not a WebSocket's frame")
        if length >= 126:
            begin = 4 if length == 126 else 10
            if len(buffer) < begin:
                return None
            length = int.from_bytes(buffer[2:begin], "big")
        if length > _LARGEST:
            raise Broken("a frame is too large")
        if len(buffer) < begin + length:
            return None
        data = bytes(buffer[begin : begin + length])
        del buffer[: begin + length]
        return bool(first & 0x80), first & 0x0F, data
