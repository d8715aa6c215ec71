"""Connections that break, and servers that are killed: nothing is lost and nothing happens twice."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from atoll import AsyncClient, AsyncSandbox, Sandbox, errors

from .conftest import Cutter, Loser, Server, wait_for

#: Numbered lines on both streams, so that a gap or a repetition is seen.
LINES = "for n in $(seq 250); do echo out $n; echo err $n >&2; done"
OUT = "".join(f"out {n}\n" for n in range(1, 251))
ERR = "".join(f"err {n}\n" for n in range(1, 251))


def test_all_calls_survive_broken_connections(server: Server, cutter: Cutter, tmp_path: Path) -> None:
    with server.client(cutter.url) as client, Sandbox.create(client=client) as sandbox:
        handle = sandbox.commands.run(LINES, background=True)
        result = handle.wait()
        assert (result.stdout, result.stderr) == (OUT, ERR)
        pieces = list(handle)
        assert [piece.position for piece in pieces[1:]] == [piece.position + len(piece.data) for piece in pieces[:-1]]
        for number in range(60):
            # Each command runs once, although responses are lost.
            sandbox.commands.run(f"echo {number} >> runs")
        assert sandbox.commands.run("cat runs").stdout == "".join(f"{n}\n" for n in range(60))
        fed = sandbox.commands.run("cat > fed", background=True, open_stdin=True)
        for number in range(100):
            fed.send_stdin(f"line {number} {'x' * 100}\n")
        fed.close_stdin()
        fed.wait()
        assert sandbox.commands.run("cut -c1-8 fed | sort -u | wc -l; wc -l < fed").stdout.split() == ["100", "100"]
        for number in range(20):
            sandbox.files.write(f"dir/{number}", f"{number}" * 50)
            assert sandbox.files.read(f"dir/{number}") == f"{number}" * 50
        assert len(sandbox.files.list("dir")) == 20
        sandbox.files.remove("dir")
        (tmp_path / "top").mkdir()
        (tmp_path / "top" / "file").write_text("text")
        sandbox.files.upload_dir(tmp_path / "top", "up")
        assert sandbox.files.download_dir("up", tmp_path / "down") == []
        assert (tmp_path / "down" / "file").read_text() == "text"
    assert cutter.cuts > 30
    with server.client() as client:
        assert sandbox.id not in [info.id for info in Sandbox.list(client=client)]


def test_async_calls_survive_broken_connections(server: Server, cutter: Cutter) -> None:
    async def main() -> None:
        async with AsyncClient(cutter.url, server.key) as client:
            async with await AsyncSandbox.create(client=client) as sandbox:
                handle = await sandbox.commands.run(LINES, background=True)
                for _ in range(10):
                    result = await handle.wait()
                    assert (result.stdout, result.stderr) == (OUT, ERR)
                await asyncio.gather(*(sandbox.commands.run(f"echo {number} >> runs") for number in range(40)))
                lines = (await sandbox.commands.run("cat runs")).stdout.split()
                assert sorted(map(int, lines)) == list(range(40))
                await sandbox.files.write("file", "x" * 200)
                assert await sandbox.files.read("file") == "x" * 200

    asyncio.run(main())
    assert cutter.cuts > 5


def lossy(server: Server, words: bytes, sandbox: Sandbox) -> tuple[Sandbox, Loser]:
    """The sandbox, through a proxy that drops the response to one request."""
    loser = Loser(server.port, words)
    return Sandbox.connect(sandbox.id, client=server.client(loser.url)), loser


def test_lost_response_does_not_repeat_effects(server: Server) -> None:
    with server.client() as client, Sandbox.create(client=client) as sandbox:
        bad, loser = lossy(server, b"/pty HTTP", sandbox)
        terminal = bad.pty.create(shell="/bin/cat")
        assert [one.id for one in sandbox.pty.list()] == [terminal.id] and loser.lost == 1
        bad, loser = lossy(server, b"/files/rename HTTP", sandbox)
        sandbox.files.write("one", "1")
        bad.files.rename("one", "two")
        assert (sandbox.files.read("two"), sandbox.files.exists("one"), loser.lost) == ("1", False, 1)
        # Calls that are not idempotent raise an error.
        bad, loser = lossy(server, b"/restart HTTP", sandbox)
        with pytest.raises(errors.ConnectionFailed, match="not known whether it was done"):
            bad.restart()
        assert loser.lost == 1
        wait_for(lambda: sandbox.refresh().state == "running")
        assert [event.type for event in sandbox.events()].count("sandbox.stopped") == 1
        bad, loser = lossy(server, b"/files/copy HTTP", sandbox)
        with pytest.raises(errors.ConnectionFailed, match="not known whether it was done"):
            bad.files.copy("two", "three")
        wait_for(lambda: sandbox.files.exists("three"))


def test_async_terminal_is_created_once(server: Server) -> None:
    loser = Loser(server.port, b"/pty HTTP")

    async def main() -> None:
        async with AsyncClient(loser.url, server.key) as client:
            async with await AsyncSandbox.create(client=client) as sandbox:
                terminal = await sandbox.pty.create(shell="/bin/cat")
                assert [one.id for one in await sandbox.pty.list()] == [terminal.id]

    asyncio.run(main())
    assert loser.lost == 1


def test_calls_wait_for_killed_server(own_server: Server) -> None:
    slow = "for n in $(seq 200); do echo out $n; echo err $n >&2; sleep 0.01; done"
    out, err = ("".join(f"{name} {n}\n" for n in range(1, 201)) for name in ("out", "err"))
    with own_server.client() as client, Sandbox.create(client=client, timeout=0) as sandbox:
        handle = sandbox.commands.run(slow, background=True)
        # A foreground command without listeners is also found again.
        waited: list[str] = []

        def wait() -> None:
            waited.append(sandbox.commands.run("echo x >> once; until [ -e go ]; do sleep 0.02; done; cat once").stdout)

        waiting = threading.Thread(target=wait)
        waiting.start()
        terminal = sandbox.pty.create()
        terminal.send("A=kept\n")
        seen: dict[str, str] = {"stdout": "", "stderr": ""}
        kills = 0
        for piece in handle:
            seen[piece.stream] += piece.text
            if piece.text.startswith(("out 50\n", "out 120\n")) or (kills == 0 and "out 60" in seen["stdout"]):
                kills += 1
                own_server.kill()
                own_server.start()
        assert seen == {"stdout": out, "stderr": err}
        assert kills
        terminal.send("echo $A; exit\n")
        assert b"kept" in b"".join(terminal)
        sandbox.files.write("go", "")
        waiting.join(60)
        assert waited == ["x\n"]
