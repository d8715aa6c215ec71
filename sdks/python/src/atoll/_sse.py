"""Parser of server-sent events, without I/O. It returns complete events only: the incomplete event of a broken
connection is dropped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Message:
    """One event. `id`, if present, is the position from which the stream can be resumed after this event."""

    event: str
    data: dict[str, Any]
    id: str | None


class Events:
    """Incremental parser from bytes to events."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Adds bytes and returns the events that are complete."""
        self._buffer += data
        end = self._buffer.rfind(b"\n\n")
        if end < 0:
            return []
        whole = self._buffer[:end].decode("utf-8", "replace")
        del self._buffer[: end + 2]
        return [_message(block) for block in whole.split("\n\n") if block]


def _message(block: str) -> Message:
    event, data, number = "message", "{}", None
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data = value
        elif name == "id":
            number = value
    return Message(event, json.loads(data), number)
