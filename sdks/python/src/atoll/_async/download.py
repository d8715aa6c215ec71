"""File downloads that resume after a broken connection."""

from __future__ import annotations

from time import monotonic

from .. import _deadline
from .._data import Progress
from .._deadline import FOREVER, Deadline
from .._retry import RetryPolicy
from .._transport import Call, ConnectionBroken, silent
from ..errors import Conflict
from .concurrency import Listener, tell
from .sandbox_api import AsyncSandboxApi
from .stream import Stream

#: A smaller file is downloaded again from its beginning, in bytes. Only larger files are compared before resuming.
_LARGE = 256 << 10


class AsyncDownload:
    """Download of one file. A large file is resumed after a broken connection, unless it was changed."""

    def __init__(self, api: AsyncSandboxApi, path: str, user: str | None, timeout: float | None) -> None:
        self._api, self._path, self._query = api, path, {"path": path, "user": user}
        self._what = f"reading {path} in {api.id}"
        self._timeout = timeout
        #: Modification time and size of a large file, to detect changes.
        self._same: tuple[object, object] | None = None
        self._total: int | None = None
        self._got = bytearray()

    async def read(self, progress: Listener[Progress] | None) -> bytearray:
        """Reads the whole file. Without a timeout, the download may take any time while data arrives."""
        client = self._api.client
        deadline = Deadline(self._timeout or FOREVER, self._what)
        retry = RetryPolicy(client.reconnect)
        while self._total is None or len(self._got) < self._total:
            stream = None
            try:
                stream = await self._open(deadline)
                while data := await self._next(stream, deadline):
                    self._got += data
                    if self._same is not None:
                        # A download that restarts from the beginning makes no progress.
                        retry.progress()
                    if progress is not None:
                        await tell(progress, Progress(len(self._got), self._total))
                break
            except ConnectionBroken as error:
                if self._same is None:
                    self._got.clear()
                    self._total = None
                call = Call("GET", "", self._what, repeat=True)
                await client.pause(call, error, retry, deadline)
            finally:
                if stream is not None:
                    stream.close()
        return self._got

    async def _open(self, deadline: Deadline) -> Stream:
        """Requests the rest of the file."""
        client, at = self._api.client, len(self._got)
        headers = {"range": f"bytes={at}-"} if at else {}
        call = Call("GET", f"{self._api.path}/files", self._what, self._query, headers=headers, repeat=True)
        opening = deadline if self._timeout else Deadline(client.timeout, self._what)
        try:
            stream = await client.open(call, opening.until)
        except TimeoutError:
            raise opening.exceeded() from None
        try:
            size = stream.headers.get("x-file-size", "")
            self._total = self._total or (int(size) if size.isdigit() else None)
            if at or (self._total or 0) > _LARGE:
                await self._compare(at > 0 and stream.status != 206)
        except BaseException:
            stream.close()
            raise
        return stream

    async def _compare(self, whole: bool) -> None:
        stat = (
            await self._api.request("GET", "/files/stat", f"reading the metadata of {self._path}", query=self._query)
        ).json()
        same = (stat.get("modifiedAt"), stat.get("size"))
        if whole or same != (self._same or same):
            raise Conflict(f"{self._path} was changed while it was read", remedy="read it again")
        self._same = same

    async def _next(self, stream: Stream, deadline: Deadline) -> bytes:
        try:
            return await stream.read(min(deadline.until, monotonic() + _deadline.SILENCE))
        except TimeoutError:
            if monotonic() >= deadline.until:
                raise deadline.exceeded() from None
            raise silent() from None
