"""Commands: the text of each kind of end, bounded output, progress, and the kill of a cancelled command."""

import asyncio
import os
import time

from host import host, only_text, wait_for

# Bytes of output. Less over a connection that breaks every few kilobytes, so that it arrives in time.
LARGE = 1_000_000_000 if os.environ["SESSION_URL"] == os.environ["ATOLL_URL"] else 300_000


async def exit_texts(session):
    output = await session.text("run_command", command="echo begun; sleep 1000", timeout=5)
    assert output.startswith("begun\n[ended after 5 s"), output
    output = await session.text("run_command", command="sleep 1000", timeout=0.5)
    assert output.startswith("[ended after 0.5 s"), output
    assert await session.text("run_command", command="kill -SEGV $$") == "[killed by signal 11]"
    assert await session.text("run_command", command="kill -9 $$") == "[killed by signal 9]"


async def large_output(session):
    """Large output is read to its end; only a part is returned and held in memory."""
    out = await session.text("run_command", command=f"echo first; yes | head -c {LARGE}; echo last", timeout=120)
    assert out.startswith("first\ny\n") and out.endswith("y\nlast") and len(out) < 31_000, len(out)
    left = f"[{LARGE + len('first') + len('last') + 2 - 30_000} bytes left out]"
    assert left in out, (left, out[14_990:15_060])
    with open(f"/proc/{session.pid}/status") as status:
        [peak] = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    assert peak < 64_000, f"{peak} kB"
    # The complete response, as the host receives it.
    done = await session.call("run_command", command="seq 1 200000")
    size = len(done.model_dump_json(by_alias=True, exclude_none=True))
    assert "left out]" in only_text(done) and size < 40_000, size


async def progress_updates(session):
    updates = []

    async def on_progress(progress, total, message):
        updates.append((progress, total, message))

    done = await session.call(
        "run_command", on_progress, command="for i in 1 2 3; do echo $i; sleep 1; done; echo ü", timeout=30
    )
    assert only_text(done) == "1\n2\n3\nü", done
    assert "".join(message or "" for _, _, message in updates) == "1\n2\n3\nü\n", updates
    assert len(updates) >= 3 and {total for _, total, _ in updates} == {30}, updates
    assert [progress for progress, _, _ in updates] == sorted(progress for progress, _, _ in updates), updates


async def cancelled(session):
    """A cancelled call kills all processes of its command, and the session continues."""
    running, started = session.begin("run_command", command="sleep 1000 & echo begun; sleep 1000", timeout=900)
    await started.wait()
    both = "until [ $(pgrep -c -x sleep) = 2 ]; do :; done; echo both"
    assert await session.text("run_command", command=both) == "both"
    running.cancel()
    try:
        await running
        raise AssertionError("it was not cancelled")
    except asyncio.CancelledError:
        pass
    count, deadline = "", time.monotonic() + 30
    while count != "0":
        assert time.monotonic() < deadline, f"{count} are left"
        count = await session.text("run_command", command="pgrep -c -x sleep || true")


async def main():
    for mode in ("auto", "legacy"):
        async with host(mode=mode) as session:
            await exit_texts(session)
            await progress_updates(session)
            await cancelled(session)
    async with host() as session:
        await large_output(session)
    # The host closes the session during a command.
    async with host() as session:
        running, started = session.begin("run_command", command="echo begun; sleep 1000", timeout=900)
        await started.wait()
    assert running.done()
    wait_for("the end of the session", lambda: not alive(session.pid))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return " Z " not in stat.read()
    except FileNotFoundError:
        return False


asyncio.run(main())
