"""Files of a sandbox. Relative paths and `~` start at the user's home directory in the sandbox."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from .._data import Data, Progress, in_pieces
from .._deadline import FOREVER, Deadline
from .._retry import RetryPolicy
from .._transport import Call, ConnectionBroken
from ..errors import ConnectionFailed, FileNotFound
from ..models import FileEvent, FileInfo, FoundFile, SignedUrl, UnpackSummary, parse
from .concurrency import Listener, blocking, tell
from .download import AsyncDownload
from .sandbox_api import AsyncSandboxApi, EventStream

if TYPE_CHECKING:
    from pathlib import Path

#: Maximum number of attempts for a rename whose response is lost.
_TRIES = 10


class AsyncFiles:
    """Reads and changes the files of a sandbox: `sandbox.files`.

    Every call takes `user`, whose permissions apply. The default is the template's user. No process in the sandbox is
    needed for these calls.
    """

    def __init__(self, api: AsyncSandboxApi) -> None:
        self._api = api

    @overload
    async def read(
        self,
        path: str,
        *,
        format: Literal["text"] = "text",
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float | None = None,
    ) -> str: ...

    @overload
    async def read(
        self,
        path: str,
        *,
        format: Literal["bytes"],
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float | None = None,
    ) -> bytes: ...

    async def read(
        self,
        path: str,
        *,
        format: Literal["text", "bytes"] = "text",
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float | None = None,
    ) -> str | bytes:
        """Reads a file. After a broken connection, a large file is resumed; raises `Conflict` if the file was changed.

        Args:
            format: `text` (UTF-8; invalid bytes become U+FFFD) or `bytes`.
            progress: Called with the progress of the transfer.
            timeout: Seconds for the whole download. The default is no limit while data arrives.
        """
        read = await AsyncDownload(self._api, path, user, timeout).read(progress)
        return bytes(read) if format == "bytes" else read.decode("utf-8", "replace")

    async def write(
        self,
        path: str,
        data: str | bytes | IO[bytes] | Iterable[bytes],
        *,
        mode: int | None = None,
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float | None = None,
    ) -> FileInfo:
        """Writes a file and creates missing parent directories. An existing file is replaced atomically after the
        upload is complete; an interrupted upload changes nothing.

        Args:
            data: Text, bytes, a binary file object, or an iterable of bytes.
            mode: Permission bits, such as `0o755`. The default is the mode of the existing file, or `0o644`.
            progress: Called with the progress of the transfer.
        """
        query = {"path": path, "user": user, "mode": None if mode is None else f"{mode:o}"}
        return parse(FileInfo, await self._send("/files", f"writing {path}", query, Data(data), progress, timeout))

    async def list(self, path: str = ".", *, depth: int = 1, user: str | None = None) -> list[FileInfo]:
        """Lists a directory and its subdirectories up to `depth` levels; at most 10,000 entries."""
        query = {"path": path, "depth": depth, "user": user}
        response = await self._api.request("GET", "/files/list", f"listing {path}", query=query)
        return [parse(FileInfo, one) for one in response.json()]

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Returns the metadata of a path. Symbolic links are not followed."""
        query = {"path": path, "user": user}
        return parse(
            FileInfo,
            (await self._api.request("GET", "/files/stat", f"reading the metadata of {path}", query=query)).json(),
        )

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether the path exists."""
        try:
            await self.stat(path, user=user)
        except FileNotFound:
            return False
        return True

    async def search(
        self, path: str = ".", *, query: str = "", content: str = "", limit: int = 100, user: str | None = None
    ) -> builtins.list[FoundFile]:
        """Searches a directory tree.

        Args:
            query: A glob pattern (`*.py`) or a part of a file name.
            content: Text to find in files.
            limit: Maximum number of results, at most 1000.
        """
        parameters = {"path": path, "query": query, "content": content, "limit": limit, "user": user}
        response = await self._api.request("GET", "/files/search", f"searching {path}", query=parameters)
        return [parse(FoundFile, one) for one in response.json()["results"]]

    async def make_dir(self, path: str, *, mode: int = 0o755, user: str | None = None) -> None:
        """Creates a directory and its missing parents. An existing directory is no error."""
        await self._change("mkdir", f"creating {path}", {"path": path, "mode": f"{mode:o}", "user": user}, repeat=True)

    async def remove(self, path: str, *, recursive: bool = True, user: str | None = None) -> None:
        """Removes a file, or a directory and its contents."""
        query = {"path": path, "recursive": recursive, "user": user}
        await self._api.request("DELETE", "/files", f"removing {path}", query=query)

    async def rename(self, source: str, target: str, *, replace: bool = False, user: str | None = None) -> None:
        """Renames or moves a file or a directory."""
        body = {"from": source, "to": target, "replace": replace, "user": user}
        for left in reversed(range(_TRIES)):
            try:
                return await self._change("rename", f"renaming {source}", body)
            except ConnectionFailed:
                # The response may be lost: the rename succeeded if the source is gone and the target exists.
                if not await self.exists(source, user=user) and await self.exists(target, user=user):
                    return None
                if not left:
                    raise
        return None

    async def copy(self, source: str, target: str, *, replace: bool = False, user: str | None = None) -> None:
        """Copies a file, or a directory and its contents."""
        body = {"from": source, "to": target, "replace": replace, "user": user}
        await self._change("copy", f"copying {source}", body)

    async def chmod(self, path: str, mode: int, *, user: str | None = None) -> None:
        """Sets permission bits, such as `0o755`."""
        body = {"path": path, "mode": f"{mode:o}", "user": user}
        await self._change("chmod", f"changing the mode of {path}", body, repeat=True)

    async def _change(self, act: str, what: str, body: dict[str, Any], *, repeat: bool = False) -> None:
        await self._api.request("POST", f"/files/{act}", what, json=body, repeat=repeat)

    async def download_url(self, path: str, *, expires_in: int = 3600, user: str | None = None) -> SignedUrl:
        """Returns a URL to read this file without an API key, valid for `expires_in` seconds."""
        return await self._link("download-url", path, expires_in, user)

    async def upload_url(self, path: str, *, expires_in: int = 3600, user: str | None = None) -> SignedUrl:
        """Returns a URL to write this file (`PUT`) without an API key, valid for `expires_in` seconds."""
        return await self._link("upload-url", path, expires_in, user)

    async def _link(self, act: str, path: str, expires_in: int, user: str | None) -> SignedUrl:
        body = {"path": path, "expiresIn": expires_in, "user": user}
        response = await self._api.request("POST", f"/files/{act}", f"signing a URL for {path}", json=body, repeat=True)
        return parse(SignedUrl, response.json())

    async def watch(self, path: str = ".", *, recursive: bool = False, user: str | None = None) -> AsyncWatch:
        """Watches a directory. Iterate over the result for the changes from now on."""
        query = {"path": path, "recursive": recursive, "user": user}
        # Events during a lost connection are missing; an `overflow` event reports that.
        events = self._api.events("/files/watch", f"watching {path}", query, None, "overflow")
        watch = AsyncWatch(events, path)
        await watch._begin(self._api.client.timeout)
        return watch

    async def upload_dir(
        self,
        local: str | Path,
        path: str = ".",
        *,
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float = 600.0,
    ) -> UnpackSummary:
        """Uploads the contents of a local directory. Modes and symbolic links are preserved.

        Args:
            local: The local directory.
            path: The target directory in the sandbox.
            timeout: Seconds for the whole upload.
            progress: Called with the progress of the transfer.
        """
        data = await blocking(Data.directory, local)
        query = {"path": path, "user": user}
        what = f"uploading {local} to {path}"
        return parse(UnpackSummary, await self._send("/files/archive", what, query, data, progress, timeout))

    async def download_dir(
        self,
        path: str,
        local: str | Path,
        *,
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float = 600.0,
    ) -> builtins.list[str]:
        """Downloads the contents of a directory into a local one. Returns the names of the entries that were skipped.

        Nothing is written outside the local directory, whatever the sandbox sends: links that point outside, devices
        and sockets are skipped, and set-id bits are dropped.
        """
        deadline = Deadline(timeout, f"downloading {path} from {self._api.id}")
        call = Call("GET", f"{self._api.path}/files/archive", deadline.what, {"path": path, "user": user}, repeat=True)
        client = self._api.client
        retry = RetryPolicy(client.reconnect)
        while True:
            try:
                return await self._fetch(call, local, progress, deadline.until)
            except TimeoutError:
                raise deadline.exceeded() from None
            except ConnectionBroken as error:
                # Retry from the beginning: existing files are replaced.
                await client.pause(call, error, retry, deadline)

    async def _fetch(
        self, call: Call, local: str | Path, progress: Listener[Progress] | None, until: float
    ) -> builtins.list[str]:
        # Imported here, as most programs do not need it.
        from .. import _tar

        stream = await self._api.client.open(call, until)
        try:
            with await blocking(_tar.archive_file, local) as archive:
                while data := await stream.read(until):
                    await blocking(archive.write, data)
                    if progress:
                        await tell(progress, Progress(archive.tell(), None))
                return await blocking(_tar.unpack, archive, local)
        finally:
            stream.close()

    async def _send(
        self,
        route: str,
        what: str,
        query: Mapping[str, object],
        data: Data,
        progress: Listener[Progress] | None,
        timeout: float | None,
    ) -> Any:
        """Sends a body and reports progress."""
        body = data.body
        on_sent: Callable[[int], Any] | None = None
        if progress is not None:
            listener, total = progress, data.total
            body = in_pieces(data.body)

            def on_sent(done: int) -> Any:
                return listener(Progress(done, total))

        response = await self._api.request(
            "PUT", route, what, query=query, body=body, on_sent=on_sent, repeat=data.again, timeout=timeout
        )
        return response.json()


class AsyncWatch:
    """Yields changes in a directory as `FileEvent`. After a broken connection the watch starts again and yields
    `overflow`, as events in between are missing."""

    def __init__(self, events: EventStream, path: str) -> None:
        self._events, self._path = events, path
        self._over = False

    async def _begin(self, timeout: float) -> None:
        deadline = Deadline(timeout, f"starting to watch {self._path}")
        try:
            await self._events.begin(deadline.until)
        except TimeoutError:
            raise deadline.exceeded() from None

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> FileEvent:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self, timeout: float | None = None) -> FileEvent | None:
        """Returns the next event, or `None` after `end`. Raises `DeadlineExceeded` if none arrives in `timeout`
        seconds."""
        if self._over:
            return None
        deadline = Deadline(timeout or FOREVER, f"waiting for something to happen in {self._path}")
        try:
            message = await self._events.next(deadline.until)
        except TimeoutError:
            raise deadline.exceeded() from None
        if message.event == "end":
            self._over = True
            self.close()
        return parse(FileEvent, {**message.data, "type": message.event})

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the watch."""
        self._over = True
        self._events.close()
