"""Files, directories and watches."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from atoll import AsyncClient, AsyncSandbox, FileEvent, Progress, Sandbox, errors
from atoll._tar import pack, unpack
from atoll._transport import ConnectionBroken

from .conftest import Cutter, Server, insist


def test_files_are_written_read_and_changed(sandbox: Sandbox) -> None:
    files = sandbox.files
    written = files.write("notes/a b?&é.txt", "text", mode=0o600)
    assert (written.path, written.size, written.mode) == ("/home/user/notes/a b?&é.txt", 4, "0600")
    assert files.read("notes/a b?&é.txt") == "text"
    files.write("notes/bytes", bytes(range(256)))
    assert files.read("notes/bytes", format="bytes") == bytes(range(256))
    files.write("notes/empty", b"")
    assert files.read("notes/empty") == ""
    files.write("notes/file", io.BytesIO(b"x" * 700_000))
    assert files.stat("notes/file").size == 700_000
    insist(lambda: files.write("notes/pieces", (b"piece" for _ in range(3))))
    assert files.read("notes/pieces") == "piece" * 3
    assert {one.name for one in files.list("notes")} == {"a b?&é.txt", "bytes", "empty", "file", "pieces"}
    files.rename("notes/pieces", "notes/renamed")
    insist(lambda: files.copy("notes", "copied", replace=True))
    files.chmod("copied/renamed", 0o755)
    assert files.stat("copied/renamed").mode == "0755"
    assert [one.path for one in files.search("copied", query="ren*")] == ["renamed"]
    assert files.search("copied", content="piece")[0].line == 1
    files.make_dir("made/below")
    assert files.exists("made/below")
    files.remove("made")
    assert not files.exists("made")


def test_progress_is_reported(sandbox: Sandbox, line: str) -> None:
    reports: list[Progress] = []
    sandbox.files.write("large", b"x" * 1_000_000, progress=reports.append)
    assert reports[-1] == Progress(1_000_000, 1_000_000)
    # Retried uploads are counted again; downloads resume.
    assert line == "bad" or [one.done for one in reports] == sorted(one.done for one in reports)
    reports.clear()
    assert sandbox.files.read("large", progress=reports.append) == "x" * 1_000_000
    assert reports[-1] == Progress(1_000_000, 1_000_000)
    assert [one.done for one in reports] == sorted(one.done for one in reports)


def test_large_download_resumes(server: Server) -> None:
    # No connection lasts for the whole file.
    cutter = Cutter(server.port, 300_000, 300_001, seed=1)
    with server.client(cutter.url) as client, server.client() as direct, Sandbox.create(client=direct) as sandbox:
        contents = os.urandom(2_000_000)
        sandbox.files.write("large", contents)
        bad = Sandbox.connect(sandbox.id, client=client)
        assert bad.files.read("large", format="bytes") == contents
        assert cutter.cuts > 5

        async def on_a_loop() -> bytes:
            async with AsyncClient(cutter.url, server.key) as client:
                read = (await AsyncSandbox.connect(sandbox.id, client=client)).files.read
                return await read("large", format="bytes")

        assert asyncio.run(on_a_loop()) == contents

        def change(progress: Progress) -> None:
            if progress.done < 500_000:
                sandbox.files.write("large", contents[::-1])

        # A file that was changed in between is not combined.
        with pytest.raises(errors.Conflict, match="large was changed while it was read"):
            bad.files.read("large", format="bytes", progress=change)
    cutter.close()


def test_path_errors_have_classes(sandbox: Sandbox) -> None:
    with pytest.raises(errors.FileNotFound, match="no-such"):
        sandbox.files.read("no-such")
    with pytest.raises(errors.NotAFile):
        sandbox.files.read("/etc")
    with pytest.raises(errors.NotADirectory):
        sandbox.files.list("/etc/passwd")
    with pytest.raises(errors.PermissionDenied):
        sandbox.files.write("/etc/new", "")
    sandbox.files.write("there", "")
    with pytest.raises(errors.FileExists) as raised:
        sandbox.files.rename("/etc/hostname", "/home/user/there", user="root")
    assert (raised.value.code, raised.value.category, raised.value.status) == ("FILE_EXISTS", "conflict", 409)
    assert raised.value.request_id and raised.value.request_id.startswith("req_")
    with pytest.raises(NotADirectoryError, match="of this machine"):
        sandbox.files.upload_dir("/no/such")


def test_signed_url_needs_no_key(sandbox: Sandbox) -> None:
    import urllib.request

    sandbox.files.write("linked", "text")
    link = sandbox.files.download_url("linked", expires_in=60)

    def read() -> bytes:
        with urllib.request.urlopen(link.url, timeout=60) as answer:
            return bytes(answer.read())

    assert insist(read) == b"text"


def test_watch_yields_changes(sandbox: Sandbox, line: str) -> None:
    sandbox.files.make_dir("watched")
    # Over a bad line some may be missing, which `overflow` reports.
    missing = [FileEvent(type="overflow")] if line == "bad" else []
    with sandbox.files.watch("watched", recursive=True) as watch:
        sandbox.files.make_dir("watched/below")
        event = watch.next(60)
        assert event and event in [FileEvent(type="create", path="below", is_dir=True), *missing]
        sandbox.commands.run("touch a; mv a b", cwd="watched")
        seen = [watch.next(60) for _ in range(2)]
        assert [one for one in seen if one in [FileEvent(type="create", path="a"), *missing]]
        with pytest.raises(errors.DeadlineExceeded, match="happen in watched"):
            while watch.next(0.3):
                pass
        sandbox.files.remove("watched")
        last = list(watch)[-1]
        assert (last.type, last.reason) == ("end", "removed")


def test_directories_survive_round_trip(sandbox: Sandbox, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "sub" / ("long" * 30)).mkdir(parents=True)
    (top / "sub" / ("long" * 30) / "größe").write_bytes(os.urandom(300_000))
    (top / "program").write_text("#!/bin/sh\n")
    (top / "program").chmod(0o755)
    (top / "empty").touch()
    (top / "sub" / "link").symlink_to("../program")
    reports: list[Progress] = []
    done = sandbox.files.upload_dir(top, "up", progress=reports.append)
    assert (done.entries, done.skipped) == (6, 0)
    assert reports[-1].total and abs(reports[-1].done - reports[-1].total) < 5000
    assert sandbox.commands.run("up/sub/link && readlink up/sub/link").stdout == "../program\n"
    assert sandbox.files.download_dir("up", tmp_path / "down") == []

    def shape(top: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for path in top.rglob("*"):
            contents = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[str(path.relative_to(top))] = (stat.S_IMODE(path.lstat().st_mode), contents)
        return found

    assert shape(tmp_path / "down") == shape(top)
    # Over what is there already.
    assert sandbox.files.download_dir("up", tmp_path / "down") == []
    assert shape(tmp_path / "down") == shape(top)


def archive(*entries: tuple[str, bytes, str]) -> bytes:
    """A malicious archive. Each entry has a name, a type and a link target."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, kind, target in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = kind, target, 0o7777
            entry.size = 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"evil"))
    return made.getvalue()


FILE, LINK, HARD, PIPE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE


@pytest.mark.parametrize(
    "entries",
    [
        [("/outside", FILE, "")],
        [("../outside", FILE, "")],
        [("a/../../outside", FILE, "")],
        [("link", LINK, "..")],
        [("link", LINK, "/etc")],
        [("link", LINK, ".."), ("link/outside", FILE, "")],
        [("here", LINK, "."), ("here/outside", FILE, "")],
        [("a/b/c", LINK, ".."), ("link", LINK, "a/b/c/../../outside")],
        [("link", HARD, "../secret")],
        [("link", HARD, "/etc/passwd")],
        [("there/outside", FILE, "")],
        [("pipe", PIPE, "")],
    ],
)
def test_archive_entries_stay_inside_directory(tmp_path: Path, entries: list[tuple[str, bytes, str]]) -> None:
    (tmp_path / "secret").write_text("secret")
    top = tmp_path / "top"
    top.mkdir()
    # An existing local link points outside too.
    (top / "there").symlink_to(tmp_path)
    data = archive(*entries, ("fine", FILE, ""))
    unpack(io.BytesIO(data), top)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "top"]
    assert (tmp_path / "secret").stat().st_nlink == 1
    assert (top / "fine").read_text() == "evil"
    assert stat.S_IMODE((top / "fine").stat().st_mode) == 0o777
    for path in top.rglob("*"):
        assert path == top / "there" or path.resolve().is_relative_to(top), path


def test_truncated_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "file").write_text("text")
    data = b"".join(pack(tmp_path / "from"))
    for end in (0, 100, 512, 514, 1024):
        with pytest.raises(ConnectionBroken):
            unpack(io.BytesIO(data[:end]), tmp_path)
    for damaged in (b"no archive " * 100, data[:1024] + b"no archive " * 100):
        with pytest.raises(ConnectionBroken):
            unpack(io.BytesIO(damaged), tmp_path)
