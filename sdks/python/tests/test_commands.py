"""Commands in the foreground and in the background."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from atoll import AsyncSandbox, Client, Sandbox, errors
from atoll._async.client import AsyncClient
from atoll._transport import Call
from atoll.tools import AsyncTools

from .conftest import Server, wait_for


def test_command_returns_output_and_exit_code(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr, result.ok) == (3, "out\n", "err\n", False)
    with pytest.raises(errors.CommandFailed, match=r"^'echo err >&2; exit 3' ended with 3: err$") as failed:
        sandbox.commands.run("echo err >&2; exit 3", check=True)
    assert failed.value.result == dataclasses.replace(
        result, exec_id=failed.value.details["exec_id"], stdout="", cmd="echo err >&2; exit 3"
    )
    with pytest.raises(errors.CommandFailed) as failed:
        sandbox.commands.run(["sh", "-c", "seq 30 >&2; exit 1"], check=True, on_stdout=len)
    last = "\n".join(map(str, range(21, 31)))
    assert str(failed.value) == f"\"sh -c 'seq 30 >&2; exit 1'\" ended with 1:\n{last}"
    connected = sandbox.commands.connect(failed.value.details["exec_id"])
    assert connected.wait().cmd == "sh -c 'seq 30 >&2; exit 1'"
    place = sandbox.commands.run(["sh", "-c", 'pwd; echo "$A"; id -un'], cwd="/tmp", env={"A": "b c"}, user="root")
    assert place.stdout == "/tmp\nb c\nroot\n"


def test_stdin_takes_any_size_and_type(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("cat", stdin="text").stdout == "text"
    assert sandbox.commands.run("wc -c", stdin=bytes(range(256)) * 2000).stdout.strip() == "512000"
    # A command that does not read its input is no error.
    assert sandbox.commands.run("true", stdin=b"x" * 500_000).ok


#: More than the server buffers for a command that does not read.
LARGE = 6 << 20


def test_stdin_may_be_read_until_command_timeout(server: Server) -> None:
    heard = Event()

    def tell(text: str) -> None:
        # Output arrives while input is still to be written; the command reads it after the client's own timeout.
        heard.set()
        sandbox.files.write("go", "")

    # A busy machine answers within the client's time.
    script = "echo begun; until [ -e go ]; do sleep 0.01; done; sleep 6; wc -c"
    with Client(server.url, server.key, timeout=5) as client, Sandbox.create(client=client) as sandbox:
        result = sandbox.commands.run(script, stdin=b"x" * LARGE, timeout=60, on_stdout=tell)
        assert heard.is_set() and result.stdout.split() == ["begun", str(LARGE)]
        # A command whose input cannot be written is killed.
        with pytest.raises(errors.DeadlineExceeded, match="giving input"):
            sandbox.commands.run("sleep 100", stdin=b"x" * LARGE, background=True)
        [left] = [one for one in sandbox.commands.list() if one.cmd == "sleep 100"]
        wait_for(lambda: sandbox.commands.get(left.exec_id).state == "exited")


def test_command_timeout_raises(sandbox: Sandbox) -> None:
    def waited() -> None:
        sandbox.commands.run("echo begun; sleep 60", timeout=3, background=True).wait()

    runs: list[Callable[[], object]] = [
        lambda: sandbox.commands.run("echo begun; sleep 60", timeout=3),
        lambda: sandbox.commands.run("echo begun; sleep 60", timeout=3, on_stdout=len),
        waited,
    ]
    for run in runs:
        with pytest.raises(errors.CommandTimeout, match="'echo begun; sleep 60' was ended by its timeout") as ended:
            run()
        result = ended.value.result
        assert result and (result.exit_code, result.timed_out, result.stdout) == (124, True, "begun\n")
        assert isinstance(ended.value, TimeoutError) and "timeout=None" in str(ended.value)
        assert pickle.loads(pickle.dumps(ended.value)).result == result


def test_default_timeout_applies_unless_none(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll._sync.commands._USUAL", 1)
    with pytest.raises(errors.CommandTimeout):
        sandbox.commands.run("sleep 70")
    for none in (None, 0):
        assert sandbox.commands.run("sleep 1.5; echo done", timeout=none).stdout == "done\n"
    assert sandbox.commands.run("sleep 1.5; echo done", background=True).wait().stdout == "done\n"


def test_listeners_get_output_at_once(sandbox: Sandbox) -> None:
    pieces: list[str] = []

    def tell(text: str) -> None:
        pieces.append(text)
        # The command continues after the listener was called.
        sandbox.files.write("heard", "")

    script = "echo one; until [ -e heard ]; do sleep 0.01; done; echo two; echo three >&2"
    result = sandbox.commands.run(script, on_stdout=tell, on_stderr=lambda text: pieces.append(f"err {text}"))
    assert pieces[0] == "one\n" and sorted(pieces) == ["err three\n", "one\n", "two\n"]
    assert (result.stdout, result.stderr) == ("one\ntwo\n", "three\n")


def test_background_command_has_stdin_output_and_tag(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat; exit 7", background=True, open_stdin=True, tag="fed")
    handle.send_stdin("één\n")
    other = sandbox.commands.connect("tag:fed")
    assert other.exec_id == handle.exec_id
    # A new handle fetches the offset of the input.
    other.send_stdin(b"two\n")
    handle._input_at = None
    handle.send_stdin("three\n")
    handle.close_stdin()
    assert "".join(piece.text for piece in handle) == "één\ntwo\nthree\n"
    assert handle.wait().exit_code == 7
    assert sandbox.commands.get(handle.exec_id).state == "exited"
    assert handle.exec_id in [one.exec_id for one in sandbox.commands.list()]
    with pytest.raises(errors.StdinClosed):
        handle.send_stdin("more")


def test_signals_and_kills_reach_command(sandbox: Sandbox, line: str) -> None:
    handle = sandbox.commands.run(
        "trap 'echo got; exit 5' INT; echo ready; while :; do sleep 0.05; done", background=True
    )
    output = iter(handle)
    assert next(output).text == "ready\n"
    try:
        handle.signal(signal.SIGINT)
    except errors.ConnectionFailed:
        # The signal may have arrived, and is not idempotent.
        if (info := handle.info()).state == "running":
            handle.signal(signal.SIGINT)
        assert line == "bad", info
    assert next(output).text == "got\n"
    assert handle.wait().exit_code == 5
    handle = sandbox.commands.run("sleep 100", background=True)
    assert sandbox.commands.kill(handle.exec_id)
    assert handle.wait(60).signal == 9
    assert not sandbox.commands.kill("exec_" + "0" * 20)


def test_wait_deadline_names_command(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 100", background=True)
    with pytest.raises(errors.DeadlineExceeded, match=f"waiting for {handle.exec_id} took longer than 0.2 s"):
        handle.wait(0.2)
    handle.kill()


def test_invalid_utf8_output_is_kept(sandbox: Sandbox) -> None:
    script = r"printf '\377\303'; until [ -e go ]; do sleep 0.01; done; printf '\251\0'"
    handle = sandbox.commands.run(script, background=True)
    output = iter(handle)
    pieces = [next(output)]
    sandbox.files.write("go", "")
    pieces += output
    assert b"".join(piece.data for piece in pieces) == b"\xff\xc3\xa9\0"
    # The two bytes of the é come apart, and together as text.
    assert [(piece.text, piece.position) for piece in pieces] == [("\ufffd", 0), ("é\0", 2)]


def test_async_api_has_the_same_methods(client: Client, line: str) -> None:
    async def main() -> None:
        async with AsyncClient(client.url, client._address.key) as server:
            async with await AsyncSandbox.create(client=server) as sandbox:
                results = await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n in range(10)))
                assert [result.stdout for result in results] == [f"{n}\n" for n in range(10)]
                pieces: list[str] = []

                async def tell(text: str) -> None:
                    pieces.append(text)

                await sandbox.commands.run("echo hello", on_stdout=tell)
                assert pieces == ["hello\n"]
                handle = await sandbox.commands.run("cat", background=True, stdin="in")
                assert [piece.text async for piece in handle] == ["in"]
                assert (await handle.wait()).ok
                with pytest.raises(errors.DeadlineExceeded):
                    await (await sandbox.commands.run("sleep 100", background=True)).wait(0.1)
                await sandbox.files.write("dir/file", "text")
                assert await sandbox.files.read("dir/file") == "text"
                async with await sandbox.files.watch("dir") as watch:
                    await sandbox.files.write("dir/file", "more")
                    assert (event := await anext(watch)).path or (line, event.type) == ("bad", "overflow")
                tools = AsyncTools(sandbox)
                assert await tools.call("bash", {"command": "cat file", "cwd": "dir"}) == "more"
                terminal = await sandbox.pty.create(shell="/bin/sh")
                seen = b""
                while b"=42=" not in seen:
                    # Keys that are on their way when a line breaks are lost.
                    await terminal.send("echo =$((6*7))=\n")
                    with suppress(errors.DeadlineExceeded):
                        seen += await terminal.read(0.2)
                await terminal.kill()
                async for _ in terminal:
                    pass
            with pytest.raises(errors.SandboxNotFound):
                await sandbox.refresh()

    asyncio.run(main())


def sockets() -> int:
    """Number of open descriptors of this process."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(descriptor.readlink()).startswith("socket:")
    return found


ENDLESS = "while :; do echo line; sleep 0.01; done"


@pytest.mark.filterwarnings("error")
def test_abandoned_iteration_closes_connection(server: Server) -> None:
    with server.client() as client, Sandbox.create(client=client) as sandbox:
        handle = sandbox.commands.run(ENDLESS, background=True)
        before = sockets()
        for piece in handle:
            assert piece.text
            break
        gc.collect()
        assert sockets() <= before

    async def main() -> None:
        client = AsyncClient(server.url, server.key)
        async with await AsyncSandbox.create(client=client) as sandbox:
            handle = await sandbox.commands.run(ENDLESS, background=True)
            before = sockets()
            async for piece in handle:
                assert piece.text
                break
            terminal = await sandbox.pty.create()
            assert await terminal.read()
            del terminal
            for _ in range(1000):
                gc.collect()
                if sockets() <= before:
                    break
                await asyncio.sleep(0.01)
            assert sockets() <= before
        await client.close()

    asyncio.run(main())


@pytest.mark.filterwarnings("error")
def test_cancelled_call_closes_connection(server: Server) -> None:
    async def main() -> None:
        client = AsyncClient(server.url, server.key)
        async with await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.files.write("large", b"x" * (8 << 20))
            await client.close()
            before = sockets()
            call = Call("GET", f"{sandbox._api.path}/files", "reading", {"path": "large"})
            stream = await client.open(call, monotonic() + 60)
            with pytest.raises(TimeoutError):
                await stream.read_all(monotonic() - 1)
            for _ in range(1000):
                if sockets() == before:
                    break
                await asyncio.sleep(0.01)
            assert sockets() == before
        await client.close()

    asyncio.run(main())
