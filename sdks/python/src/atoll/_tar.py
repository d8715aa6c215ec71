"""Directories as tar archives.

Archives of a sandbox are not trusted. `unpack` writes nothing outside its directory: it refuses absolute names and
`..`, writes through no link, and creates links last, and only those that lead to somewhere inside. This is not left to
the `data` filter of `tarfile`, which has been escaped in Python releases that are still in use (CVE-2025-4517 and
others).
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import IO

from ._transport import ConnectionBroken

_BLOCK = tarfile.BLOCKSIZE
_PIECE = 256 << 10
_END = bytes(2 * _BLOCK)


def directory(local: str | Path) -> Path:
    """Returns a local directory; raises `NotADirectoryError` if it does not exist."""
    top = Path(local)
    if not top.is_dir():
        raise NotADirectoryError(f"{top} is not a directory of this machine")
    return top


def size(top: Path) -> int:
    """The approximate size of a directory's archive, in bytes."""
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
    """Yields the archive of a directory's contents in pieces. Devices, sockets and FIFOs are omitted."""
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
    """Yields as many bytes as the header of the entry specifies, even if the file grows in the meantime."""
    while size:
        piece = file.read(min(size, _PIECE))
        if not piece:
            raise OSError(f"{file.name} became shorter while it was sent")
        size -= len(piece)
        yield piece


def archive_file(local: str | Path) -> IO[bytes]:
    """An unnamed temporary file for an archive, on the file system to unpack to."""
    top = Path(local)
    top.mkdir(parents=True, exist_ok=True)
    return TemporaryFile(dir=top)


def unpack(archive: IO[bytes], local: str | Path) -> list[str]:
    """Unpacks an archive below a directory. Returns the names of the skipped entries."""
    top = Path(local)
    skipped: list[str] = []
    links: list[tuple[Path, tarfile.TarInfo]] = []
    archive.seek(0)
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            for entry in tar:
                path = _place(top, entry.name)
                if path is None:
                    skipped.append(entry.name)
                elif entry.isdir():
                    path.mkdir(exist_ok=True)
                    if path != top:
                        path.chmod(entry.mode & 0o777 | 0o700)
                elif entry.isreg():
                    _write(tar, entry, path)
                elif entry.issym() or entry.islnk():
                    links.append((path, entry))
                else:
                    skipped.append(entry.name)
            # `tarfile` takes garbage after an entry for the end of the archive.
            archive.seek(tar.offset)
            if archive.read(_BLOCK) != bytes(_BLOCK):
                raise ConnectionBroken("the archive broke off")
    except tarfile.TarError as error:
        raise ConnectionBroken(f"the archive is damaged: {error}") from None
    return skipped + [name for path, entry in links if (name := _link(top, path, entry)) is not None]


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
    contents = tar.extractfile(entry)
    assert contents is not None
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, entry.mode & 0o777)
    with contents, os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(contents, file, _PIECE)
    path.chmod(entry.mode & 0o777)


def _place(top: Path, name: str) -> Path | None:
    """The local path of an entry. Creates its parent directories and refuses paths through links."""
    parts = [part for part in PurePosixPath(name).parts if part != "."]
    if PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name:
        return None
    place = top
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink():
            return None
        place.mkdir(exist_ok=True)
    place = place.joinpath(*parts[-1:])
    if place.is_symlink():
        place.unlink()
    return place


def _link(top: Path, path: Path, entry: tarfile.TarInfo) -> str | None:
    """Creates a link, or returns its name if it would point outside. `..` is allowed only at the beginning of a target:
    any other could point outside through another link."""
    below, target = path.relative_to(top), entry.linkname
    parts = PurePosixPath(target).parts
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    depth = 0 if entry.islnk() else len(below.parts) - 1
    source = _place(top, target) if entry.islnk() else None
    if (
        not parts
        or "\0" in target
        or PurePosixPath(target).is_absolute()
        or up > depth
        or ".." in parts[up:]
        or path.is_dir()
        or (entry.islnk() and (source is None or not source.is_file()))
    ):
        return below.as_posix()
    path.unlink(missing_ok=True)
    if source:
        path.hardlink_to(source)
    else:
        path.symlink_to(target)
    return None
