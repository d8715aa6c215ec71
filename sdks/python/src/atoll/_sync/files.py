# Made from _async/files.py by generate.py.
"""Files of a sandbox. Paths are the sandbox's; relative ones, and `~`, start at the user's home."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from .._data import Data, Progress, in_pieces
from .._deadline import FOREVER, Deadline
from .._patience import Patience
from .._transport import Broken, Call
from ..errors import ConnectionFailed, FileNotFound
from ..models import FileEvent, FileInfo, FoundFile, SignedUrl, UnpackSummary, parse
from .concurrency import Listener, blocking, tell
from .door import Door, EventStream
from .download import Download

if TYPE_CHECKING:
    from pathlib import Path

#: How often a renaming whose answer is lost is looked after.
_TRIES = 10


class Files:
    """Reads and changes the files of a sandbox: `sandbox.files`.

    Every call takes `user`: as whom it is done; the template's user if nothing is said. No program of the sandbox takes
    part.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    @overload
    def read(
        self,
        path: str,
        *,
        format: Literal["text"] = "text",
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float | None = None,
    ) -> str: ...

    @overload
    def read(
        self,
        path: str,
        *,
        format: Literal["bytes"],
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float | None = None,
    ) -> bytes: ...

    def read(
        self,
        path: str,
        *,
        format: Literal["text", "bytes"] = "text",
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float | None = None,
    ) -> str | bytes:
        """What is in a file. A large one goes on where it broke off; `Conflict` if it was changed meanwhile.

        Args:
            format: `text` (UTF-8; what is none becomes U+FFFD) or `bytes`.
            progress: Is told how far it is.
            timeout: How long it may take, in seconds; as long as something comes if nothing is said.
        """
        read = Download(self._door, path, user, timeout).read(progress)
        return bytes(read) if format == "bytes" else read.decode("utf-8", "replace")

    def write(
        self,
        path: str,
        data: str | bytes | IO[bytes] | Iterable[bytes],
        *,
        mode: int | None = None,
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float | None = None,
    ) -> FileInfo:
        """Writes a file, and the directories above it that are missing. One that is there is replaced at once, when all
        has come; what breaks off changes nothing.

        Args:
            data: Text, bytes, a file that is open for reading, or pieces of bytes.
            mode: Permission bits, such as `0o755`; as they were, or `0o644`, if nothing is said.
            progress: Is told how far it is.
        """
        query = {"path": path, "user": user, "mode": None if mode is None else f"{mode:o}"}
        return parse(FileInfo, self._send("/files", f"writing {path}", query, Data(data), progress, timeout))

    def list(self, path: str = ".", *, depth: int = 1, user: str | None = None) -> list[FileInfo]:
        """What is in a directory, and in those below it up to a depth; at most 10,000 entries."""
        query = {"path": path, "depth": depth, "user": user}
        answer = self._door.ask("GET", "/files/list", f"listing {path}", query=query)
        return [parse(FileInfo, one) for one in answer.json()]

    def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """What a path leads to. Links are not followed."""
        query = {"path": path, "user": user}
        return parse(FileInfo, (self._door.ask("GET", "/files/stat", f"looking at {path}", query=query)).json())

    def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether something is there."""
        try:
            self.stat(path, user=user)
        except FileNotFound:
            return False
        return True

    def search(
        self, path: str = ".", *, query: str = "", content: str = "", limit: int = 100, user: str | None = None
    ) -> builtins.list[FoundFile]:
        """Looks below a directory.

        Args:
            query: A pattern of names (`*.py`), or a part of one.
            content: Text in files.
            limit: At most 1000.
        """
        asked = {"path": path, "query": query, "content": content, "limit": limit, "user": user}
        answer = self._door.ask("GET", "/files/search", f"searching {path}", query=asked)
        return [parse(FoundFile, one) for one in answer.json()["results"]]

    def make_dir(self, path: str, *, mode: int = 0o755, user: str | None = None) -> None:
        """Makes a directory, and those above it that are missing. One that is there is no failure."""
        self._change("mkdir", f"making {path}", {"path": path, "mode": f"{mode:o}", "user": user}, repeat=True)

    def remove(self, path: str, *, recursive: bool = True, user: str | None = None) -> None:
        """Removes a file, or a directory with all that is below."""
        query = {"path": path, "recursive": recursive, "user": user}
        self._door.ask("DELETE", "/files", f"removing {path}", query=query)

    def rename(self, source: str, target: str, *, replace: bool = False, user: str | None = None) -> None:
        """Renames or moves a file or a directory."""
        told = {"from": source, "to": target, "replace": replace, "user": user}
        for left in reversed(range(_TRIES)):
            try:
                return self._change("rename", f"renaming {source}", told)
            except ConnectionFailed:
                # The answer may be lost: it was done if the one is gone and the other there.
                if not self.exists(source, user=user) and self.exists(target, user=user):
                    return None
                if not left:
                    raise
        return None

    def copy(self, source: str, target: str, *, replace: bool = False, user: str | None = None) -> None:
        """Copies a file, or a directory with all that is below."""
        told = {"from": source, "to": target, "replace": replace, "user": user}
        self._change("copy", f"copying {source}", told)

    def chmod(self, path: str, mode: int, *, user: str | None = None) -> None:
        """Sets permission bits, such as `0o755`."""
        told = {"path": path, "mode": f"{mode:o}", "user": user}
        self._change("chmod", f"changing the mode of {path}", told, repeat=True)

    def _change(self, act: str, what: str, told: dict[str, Any], *, repeat: bool = False) -> None:
        self._door.ask("POST", f"/files/{act}", what, json=told, repeat=repeat)

    def download_url(self, path: str, *, expires_in: int = 3600, user: str | None = None) -> SignedUrl:
        """A link by which everybody who has it can read this one file, for so many seconds."""
        return self._link("download-url", path, expires_in, user)

    def upload_url(self, path: str, *, expires_in: int = 3600, user: str | None = None) -> SignedUrl:
        """A link by which everybody who has it can write this one file (`PUT`), for so many seconds."""
        return self._link("upload-url", path, expires_in, user)

    def _link(self, act: str, path: str, expires_in: int, user: str | None) -> SignedUrl:
        told = {"path": path, "expiresIn": expires_in, "user": user}
        answer = self._door.ask("POST", f"/files/{act}", f"making a link to {path}", json=told, repeat=True)
        return parse(SignedUrl, answer.json())

    def watch(self, path: str = ".", *, recursive: bool = False, user: str | None = None) -> Watch:
        """Watches a directory: what happens from now on is told by iterating over what is returned."""
        query = {"path": path, "recursive": recursive, "user": user}
        # What happened while nobody listened is not told, but that there was such a time.
        events = self._door.events("/files/watch", f"watching {path}", query, None, "overflow")
        watch = Watch(events, path)
        watch._begin(self._door.client.timeout)
        return watch

    def upload_dir(
        self,
        local: str | Path,
        path: str = ".",
        *,
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float = 600.0,
    ) -> UnpackSummary:
        """Sends what is below a directory of this machine into one of the sandbox. Modes and links are kept.

        Args:
            progress: Is told how far it is.
        """
        data = blocking(Data.directory, local)
        query = {"path": path, "user": user}
        what = f"sending {local} to {path}"
        return parse(UnpackSummary, self._send("/files/archive", what, query, data, progress, timeout))

    def download_dir(
        self,
        path: str,
        local: str | Path,
        *,
        user: str | None = None,
        progress: Listener[Progress] | None = None,
        timeout: float = 600.0,
    ) -> builtins.list[str]:
        """Fetches what is below a directory of the sandbox into one of this machine; the names of what was left out.

        Nothing is written outside of it, whatever the sandbox sends: links that lead out are left out, and so are
        devices, sockets and set-id bits.
        """
        deadline = Deadline(timeout, f"fetching {path} from {self._door.id}")
        call = Call("GET", f"{self._door.path}/files/archive", deadline.what, {"path": path, "user": user}, repeat=True)
        client = self._door.client
        patience = Patience(client.reconnect)
        while True:
            try:
                return self._fetch(call, local, progress, deadline.until)
            except TimeoutError:
                raise deadline.exceeded() from None
            except Broken as error:
                # From the beginning: what is there already is replaced.
                client.pause(call, error, patience, deadline)

    def _fetch(
        self, call: Call, local: str | Path, progress: Listener[Progress] | None, until: float
    ) -> builtins.list[str]:
        # Imported here, as most programs do not need it.
        from .. import _tar

        stream = self._door.client.open(call, until)
        try:
            with blocking(_tar.archive_file, local) as archive:
                while data := stream.read(until):
                    blocking(archive.write, data)
                    if progress:
                        tell(progress, Progress(archive.tell(), None))
                return blocking(_tar.unpack, archive, local)
        finally:
            stream.close()

    def _send(
        self,
        route: str,
        what: str,
        query: Mapping[str, object],
        data: Data,
        progress: Listener[Progress] | None,
        timeout: float | None,
    ) -> Any:
        """Sends a body, and tells how far it is."""
        body = data.body
        told: Callable[[int], Any] | None = None
        if progress is not None:
            listener, total = progress, data.total
            body = in_pieces(data.body)

            def told(done: int) -> Any:
                return listener(Progress(done, total))

        answer = self._door.ask(
            "PUT", route, what, query=query, body=body, told=told, repeat=data.again, timeout=timeout
        )
        return answer.json()


class Watch:
    """What happens in a directory, as `FileEvent`. After a broken connection it begins anew, and says so by an
    `overflow`: what happened in between is not told."""

    def __init__(self, events: EventStream, path: str) -> None:
        self._events, self._path = events, path
        self._over = False

    def _begin(self, timeout: float) -> None:
        deadline = Deadline(timeout, f"beginning to watch {self._path}")
        try:
            self._events.begin(deadline.until)
        except TimeoutError:
            raise deadline.exceeded() from None

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> FileEvent:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def next(self, timeout: float | None = None) -> FileEvent | None:
        """The next event; nothing after the `end`, and `DeadlineExceeded` if none comes in so many seconds."""
        if self._over:
            return None
        deadline = Deadline(timeout or FOREVER, f"waiting for something to happen in {self._path}")
        try:
            message = self._events.next(deadline.until)
        except TimeoutError:
            raise deadline.exceeded() from None
        if message.event == "end":
            self._over = True
            self.close()
        return parse(FileEvent, {**message.data, "type": message.event})

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Watches no more."""
        self._over = True
        self._events.close()
