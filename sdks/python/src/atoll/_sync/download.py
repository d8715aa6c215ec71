# Made from _async/download.py by generate.py.
"""The bytes of a file, over a line that may break."""

from __future__ import annotations

from time import monotonic

from .. import _deadline
from .._data import Progress
from .._deadline import FOREVER, Deadline
from .._patience import Patience
from .._transport import Broken, Call, silent
from ..errors import Conflict
from .concurrency import Listener, tell
from .door import Door
from .stream import Stream

#: A smaller file is read again from its beginning: nobody has to look whether it is the same.
_LARGE = 256 << 10


class Download:
    """One file. A large one goes on where it broke off, as long as it is the same."""

    def __init__(self, door: Door, path: str, user: str | None, timeout: float | None) -> None:
        self._door, self._path, self._query = door, path, {"path": path, "user": user}
        self._what = f"reading {path} in {door.id}"
        self._timeout = timeout
        #: Of a large file, which one it is: when it was changed, and its size.
        self._same: tuple[object, object] | None = None
        self._total: int | None = None
        self._got = bytearray()

    def read(self, progress: Listener[Progress] | None) -> bytearray:
        """All of it. Without a time-out it may take as long as it goes on."""
        client = self._door.client
        deadline = Deadline(self._timeout or FOREVER, self._what)
        patience = Patience(client.reconnect)
        while self._total is None or len(self._got) < self._total:
            stream = None
            try:
                stream = self._open(deadline)
                while data := self._next(stream, deadline):
                    self._got += data
                    if self._same is not None:
                        # What begins anew each time does not go on.
                        patience.progress()
                    if progress is not None:
                        tell(progress, Progress(len(self._got), self._total))
                break
            except Broken as error:
                if self._same is None:
                    self._got.clear()
                    self._total = None
                call = Call("GET", "", self._what, repeat=True)
                client.pause(call, error, patience, deadline)
            finally:
                if stream is not None:
                    stream.close()
        return self._got

    def _open(self, deadline: Deadline) -> Stream:
        """The rest of it."""
        client, at = self._door.client, len(self._got)
        headers = {"range": f"bytes={at}-"} if at else {}
        call = Call("GET", f"{self._door.path}/files", self._what, self._query, headers=headers, repeat=True)
        opening = deadline if self._timeout else Deadline(client.timeout, self._what)
        try:
            stream = client.open(call, opening.until)
        except TimeoutError:
            raise opening.exceeded() from None
        try:
            size = stream.headers.get("x-file-size", "")
            self._total = self._total or (int(size) if size.isdigit() else None)
            if at or (self._total or 0) > _LARGE:
                self._compare(at > 0 and stream.status != 206)
        except BaseException:
            stream.close()
            raise
        return stream

    def _compare(self, whole: bool) -> None:
        told = (self._door.ask("GET", "/files/stat", f"looking at {self._path}", query=self._query)).json()
        same = (told.get("modifiedAt"), told.get("size"))
        if whole or same != (self._same or same):
            raise Conflict(f"{self._path} was changed while it was read", remedy="read it again")
        self._same = same

    def _next(self, stream: Stream, deadline: Deadline) -> bytes:
        try:
            return stream.read(min(deadline.until, monotonic() + _deadline.SILENCE))
        except TimeoutError:
            if monotonic() >= deadline.until:
                raise deadline.exceeded() from None
            raise silent() from None
