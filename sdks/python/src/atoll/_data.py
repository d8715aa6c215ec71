"""Data to upload: text, bytes, files, iterables and directories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

from ._transport import Body

if TYPE_CHECKING:
    from pathlib import Path

PIECE = 256 << 10


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a transfer: `done` bytes of about `total`, which is `None` if unknown."""

    done: int
    total: int | None


class Data:
    """An upload: its `body`, its approximate size (`total`), and whether it can be sent `again`."""

    __slots__ = ("again", "body", "total")

    def __init__(self, given: str | bytes | IO[bytes] | Iterable[bytes]) -> None:
        self.again = True
        self.total: int | None = None
        self.body: Body
        if isinstance(given, str):
            given = given.encode()
        if isinstance(given, (bytes, bytearray, memoryview)):
            self.body = bytes(given)
            self.total = len(self.body)
        elif hasattr(given, "read"):
            file = cast("IO[bytes]", given)
            self.again = file.seekable()
            start = file.tell() if self.again else 0

            def read() -> Iterator[bytes]:
                if self.again:
                    file.seek(start)
                while piece := file.read(PIECE):
                    yield piece

            self.body = read
        else:
            parts = given
            # An iterator can be consumed only once.
            self.again = iter(parts) is not parts
            self.body = lambda: iter(parts)

    @classmethod
    def directory(cls, local: str | Path) -> Data:
        """The contents of a local directory as a tar archive."""
        # Imported here, as it is slow to import and rarely needed.
        from . import _tar

        top = _tar.directory(local)
        data = cls(b"")
        data.body, data.total = lambda: _tar.pack(top), _tar.size(top)
        return data


def in_pieces(body: Body) -> Callable[[], Iterator[bytes]]:
    """A body as a function that returns its pieces."""
    if callable(body):
        return body
    return lambda: (body[at : at + PIECE] for at in range(0, len(body), PIECE))
