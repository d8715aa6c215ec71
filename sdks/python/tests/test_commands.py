"""Commands: what comes back, in whichever way they are run."""

from __future__ import annotations

import asyncio
import signal

import pytest

from atoll import AsyncSandbox, Client, Sandbox, errors
from atoll._async.client import AsyncClient


def test_a_command_tells_what_it_wrote_and_how_it_ended(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr, result.ok) == (3, "out\n", "err\n", False)
    with pytest.raises(errors.CommandFailed, match="ended with 3: err"):
        sandbox.commands.run("echo err >&2; exit 3", check=True)
    place = sandbox.commands.run(["sh", "-c", 'pwd; echo "$A"; id -un'], cwd="/tmp", env={"A": "b c"}, user="root")
    assert place.stdout == "/tmp\nb c\nroot\n"


def test_input_of_any_size_and_kind_goes_in(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("cat", stdin="text").stdout == "text"
    assert sandbox.commands.run("wc -c", stdin=bytes(range(256)) * 2000).stdout.strip() == "512000"
    # One that does not want it is no failure.
    assert sandbox.commands.run("true", stdin=b"x" * 500_000).ok


def test_a_deadline_ends_a_command_and_is_told(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo begun; sleep 60", timeout=0.3)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, "begun\n")
    with pytest.raises(errors.CommandFailed, match="timeout"):
        result.check()


def test_listeners_are_told_at_once(sandbox: Sandbox) -> None:
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        # It goes on when this was heard.
        sandbox.files.write("heard", "")

    line = "echo one; until [ -e heard ]; do sleep 0.01; done; echo two; echo three >&2"
    result = sandbox.commands.run(line, on_stdout=tell, on_stderr=lambda text: told.append(f"err {text}"))
    assert told[0] == "one\n" and sorted(told) == ["err three\n", "one\n", "two\n"]
    assert (result.stdout, result.stderr) == ("one\ntwo\n", "three\n")


def test_a_command_in_the_background_can_be_fed_followed_and_found(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat; exit 7", background=True, open_stdin=True, tag="fed")
    handle.send_stdin("één\n")
    other = sandbox.commands.connect("tag:fed")
    assert other.exec_id == handle.exec_id
    # A handle that did not write before finds out how much was.
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


def test_signals_and_kills_reach_it(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run(
        "trap 'echo got; exit 5' INT; echo ready; while :; do sleep 0.05; done", background=True
    )
    output = iter(handle)
    assert next(output).text == "ready\n"
    handle.signal(signal.SIGINT)
    assert next(output).text == "got\n"
    assert handle.wait().exit_code == 5
    handle = sandbox.commands.run("sleep 100", background=True)
    assert sandbox.commands.kill(handle.exec_id)
    assert handle.wait(10).signal == 9
    assert not sandbox.commands.kill("exec_" + "0" * 20)


def test_a_wait_has_a_deadline_that_says_what_it_waited_for(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 100", background=True)
    with pytest.raises(errors.DeadlineExceeded, match=f"waiting for {handle.exec_id} took longer than 0.2 s"):
        handle.wait(0.2)
    handle.kill()


def test_bytes_that_are_no_text_come_as_they_are(sandbox: Sandbox) -> None:
    line = r"printf '\377\303'; until [ -e go ]; do sleep 0.01; done; printf '\251\0'"
    handle = sandbox.commands.run(line, background=True)
    output = iter(handle)
    pieces = [next(output)]
    sandbox.files.write("go", "")
    pieces += output
    assert b"".join(piece.data for piece in pieces) == b"\xff\xc3\xa9\0"
    # The two bytes of the é come apart, and together as text.
    assert [(piece.text, piece.position) for piece in pieces] == [("\ufffd", 0), ("é\0", 2)]


def test_the_same_names_work_on_an_event_loop(client: Client) -> None:
    async def main() -> None:
        async with AsyncClient(client.url, client._address.key) as server:
            async with await AsyncSandbox.create(client=server) as sandbox:
                results = await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n in range(10)))
                assert [result.stdout for result in results] == [f"{n}\n" for n in range(10)]
                told: list[str] = []

                async def tell(text: str) -> None:
                    told.append(text)

                await sandbox.commands.run("echo told", on_stdout=tell)
                assert told == ["told\n"]
                handle = await sandbox.commands.run("cat", background=True, stdin="in")
                assert [piece.text async for piece in handle] == ["in"]
                assert (await handle.wait()).ok
                with pytest.raises(errors.DeadlineExceeded):
                    await (await sandbox.commands.run("sleep 100", background=True)).wait(0.1)
                await sandbox.files.write("dir/file", "text")
                assert await sandbox.files.read("dir/file") == "text"
                async with await sandbox.files.watch("dir") as watch:
                    await sandbox.files.write("dir/file", "more")
                    assert (await anext(watch)).path
                terminal = await sandbox.pty.create()
                await terminal.send("exit\n")
                assert b"exit" in b"".join([data async for data in terminal])
            with pytest.raises(errors.SandboxNotFound):
                await sandbox.refresh()

    asyncio.run(main())
