"""Directories as tar archives, in pieces: packed as they are read, and unpacked as they come.

What comes out of a sandbox is not trusted. An entry stays below the directory it is unpacked into: no absolute name, no
`..`, no way through a link; links are made last, and only those that lead to somewhere inside. What is left out is
told.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from ._http import Broken

_BLOCK = 512
_PIECE = 256 << 10
_END = bytes(2 * _BLOCK)
#: The longest name, or set of names, that an entry may have before it.
_LONGEST = 1 << 20


def directory(local: str | Path) -> Path:
    """A directory of this machine that is there."""
    top = Path(local)
    if not top.is_dir():
        raise NotADirectoryError(f"{top} is not a directory of this machine")
    return top


def size(top: Path) -> int:
    """About how long the archive of a directory is."""
    total = len(_END)
    for path in _walk(top):
        found = path.lstat()
        contents = found.st_size if stat.S_ISREG(found.st_mode) else 0
        total += _BLOCK + contents + -contents % _BLOCK
    return total


def _walk(top: Path) -> Iterator[Path]:
    for place, directories, files in os.walk(top):
        directories.sort()
        for name in sorted([*directories, *files]):
            yield Path(place, name)


def pack(top: Path) -> Iterator[bytes]:
    """All that is below a directory. Devices, sockets and FIFOs are left out."""
    waiting = bytearray()
    for path in _walk(top):
        found = path.lstat()
        entry = tarfile.TarInfo(path.relative_to(top).as_posix())
        entry.mode, entry.mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
        if stat.S_ISREG(found.st_mode):
            with path.open("rb") as file:
                entry.size = os.fstat(file.fileno()).st_size
                waiting += entry.tobuf(tarfile.PAX_FORMAT)
                for piece in _exactly(file, entry.size):
                    waiting += piece
                    if len(waiting) >= _PIECE:
                        yield bytes(waiting)
                        waiting.clear()
            waiting += bytes(-entry.size % _BLOCK)
            continue
        if stat.S_ISDIR(found.st_mode):
            entry.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(found.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
        else:
            continue
        waiting += entry.tobuf(tarfile.PAX_FORMAT)
    yield bytes(waiting) + _END


def _exactly(file: IO[bytes], size: int) -> Iterator[bytes]:
    """As many bytes as were promised, whatever happens to the file meanwhile."""
    while size:
        piece = file.read(min(size, _PIECE))
        if not piece:
            raise OSError(f"{file.name} became shorter while it was sent")
        size -= len(piece)
        yield piece


class Unpacker:
    """Unpacks below a directory what is fed to it."""

    def __init__(self, local: str | Path) -> None:
        self._top = top = Path(local)
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None
        #: What is left of the entry's contents, and of what only fills its last block.
        self._left = self._filling = 0
        #: The contents of an entry that says something about the next one, by its type.
        self._words: tuple[bytes, bytearray] | None = None
        self._said: dict[str, str] = {}
        self._links: list[tuple[Path, str, bool]] = []
        self._over = False
        #: Names of entries that were left out.
        self.skipped: list[str] = []
        top.mkdir(parents=True, exist_ok=True)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the archive."""
        self._buffer += data
        while not self._over and self._buffer:
            if self._left:
                piece = bytes(self._buffer[: self._left])
                del self._buffer[: len(piece)]
                self._left -= len(piece)
                self._write(piece)
            elif self._filling:
                gone = min(self._filling, len(self._buffer))
                del self._buffer[:gone]
                self._filling -= gone
            elif len(self._buffer) >= _BLOCK:
                block = bytes(self._buffer[:_BLOCK])
                del self._buffer[:_BLOCK]
                self._entry(block)
            else:
                return

    def finish(self) -> None:
        """All has come: makes the links. An archive without its end broke off."""
        self.close()
        if not self._over:
            raise Broken("the archive broke off")
        for path, target, hard in self._links:
            self._link(path, target, hard)

    def close(self) -> None:
        """Lets go of the file that is being written."""
        if self._file:
            self._file.close()
            self._file = None

    def _write(self, piece: bytes) -> None:
        if self._words:
            self._words[1].extend(piece)
            if not self._left:
                self._heard(*self._words)
                self._words = None
        elif self._file:
            self._file.write(piece)
            if not self._left:
                self.close()

    def _heard(self, kind: bytes, words: bytearray) -> None:
        """A name that was too long for its place, or several."""
        if kind in (b"L", b"K"):
            self._said["path" if kind == b"L" else "linkpath"] = words.rstrip(b"\0").decode("utf-8", "surrogateescape")
            return
        while words:
            length, _, _ = bytes(words).partition(b" ")
            if not length.isdigit() or not 0 < int(length) <= len(words):
                raise Broken("the archive has a header that is none")
            name, _, value = bytes(words[len(length) + 1 : int(length) - 1]).partition(b"=")
            self._said[name.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
            del words[: int(length)]

    def _entry(self, block: bytes) -> None:
        if not block.strip(b"\0"):
            self._over = True
            return
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise Broken(f"the archive has a header that is none: {error}") from None
        if entry.type in (b"L", b"K", b"x"):
            if entry.size > _LONGEST:
                raise Broken("the archive has a name that is too long")
            self._words = (entry.type, bytearray())
            self._left, self._filling = entry.size, -entry.size % _BLOCK
            return
        said, self._said = self._said, {}
        name, target = said.get("path", entry.name), said.get("linkpath", entry.linkname)
        length = entry.size if entry.isreg() else 0
        if length and (told := said.get("size", "")).isdigit():
            length = int(told)
        if length < 0:
            raise Broken("the archive has an entry without a size")
        self._left, self._filling = length, -length % _BLOCK
        path = self._place(name)
        if path is None:
            self.skipped.append(name)
        elif entry.isdir():
            path.mkdir(exist_ok=True)
            if path != self._top:
                path.chmod(entry.mode & 0o777 | 0o700)
        elif entry.isreg():
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, entry.mode & 0o777)
            self._file = open(descriptor, "wb")  # noqa: SIM115, PTH123
            path.chmod(entry.mode & 0o777)
            if not length:
                self.close()
        elif entry.issym() or entry.islnk():
            self._links.append((path, target, entry.islnk()))
        elif entry.type != b"g":
            self.skipped.append(name)

    def _place(self, name: str) -> Path | None:
        """Where an entry goes: below the top, with its directories made, and through no link."""
        parts = [part for part in PurePosixPath(name).parts if part != "."]
        if PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name:
            return None
        place = self._top
        for part in parts[:-1]:
            place = place / part
            if place.is_symlink():
                return None
            place.mkdir(exist_ok=True)
        place = place.joinpath(*parts[-1:])
        if place.is_symlink():
            place.unlink()
        return place

    def _link(self, path: Path, target: str, hard: bool) -> None:
        """Links lead to somewhere below the top, or are not made. They go up only at their beginning: every other
        `..` could lead out by way of another link."""
        below = path.relative_to(self._top)
        parts = PurePosixPath(target).parts
        up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
        depth = 0 if hard else len(below.parts) - 1
        source = self._place(target) if hard else None
        if (
            not parts
            or "\0" in target
            or PurePosixPath(target).is_absolute()
            or up > depth
            or ".." in parts[up:]
            or path.is_dir()
            or (hard and (source is None or not source.is_file()))
        ):
            self.skipped.append(below.as_posix())
            return
        path.unlink(missing_ok=True)
        if source:
            path.hardlink_to(source)
        else:
            path.symlink_to(target)
