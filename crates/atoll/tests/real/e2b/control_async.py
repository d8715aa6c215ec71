"""Sandboxes, commands and terminals, with the asynchronous client."""

import asyncio

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

from expect import raises, same


async def commands(sandbox):
    run = sandbox.commands.run
    stdout, stderr = [], []
    result = await run(
        "echo $A; echo err >&2; pwd; whoami",
        on_stdout=stdout.append,
        on_stderr=stderr.append,
        cwd="/tmp",
        user="root",
    )
    same((result.stdout, result.stderr), ("1\n/tmp\nroot\n", "err\n"))
    same(("".join(stdout), "".join(stderr)), (result.stdout, result.stderr))
    with raises(CommandExitException) as caught:
        await run("exit 3")
    same((caught.error.exit_code, caught.error.error), (3, "exit status 3"))
    with raises(InvalidArgumentException, "cwd '/nowhere' does not exist"):
        await run("true", cwd="/nowhere")
    with raises(AuthenticationException, "invalid username: 'no-such-user'"):
        await run("true", user="no-such-user")
    with raises(TimeoutException):
        await run("sleep 600", timeout=1)
    # Concurrent commands.
    results = await asyncio.gather(*(run(f"echo {n}") for n in range(20)))
    same([result.stdout for result in results], [f"{n}\n" for n in range(20)])


async def background(sandbox):
    commands = sandbox.commands
    handle = await commands.run("cat", background=True, stdin=True)
    assert handle.pid in [info.pid for info in await commands.list()]
    await commands.send_stdin(handle.pid, "one\n")
    if hasattr(commands, "stream_input"):
        stream = commands.stream_input(handle.pid)
        for piece in ["t", "w", b"o\n"]:
            await stream.send(piece)
        await stream.close()
    else:
        await commands.send_stdin(handle.pid, "two\n")
    await commands.close_stdin(handle.pid)
    same((await handle.wait()).stdout, "one\ntwo\n")
    handle = await commands.run("read line; echo $line; sleep 600", background=True, stdin=True)
    await handle.disconnect()
    received = asyncio.Event()
    reconnected = await commands.connect(handle.pid, on_stdout=lambda text: received.set())
    await commands.send_stdin(handle.pid, "still here\n")
    await asyncio.wait_for(received.wait(), 20)
    same(reconnected.stdout, "still here\n")
    same(await reconnected.kill(), True)
    with raises(CommandExitException) as caught:
        await reconnected.wait()
    same(await commands.kill(reconnected.pid), False)
    same((caught.error.exit_code, caught.error.error), (-1, "signal: killed"))


async def terminals(sandbox):
    seen = bytearray()
    pty = sandbox.pty
    handle = await pty.create(PtySize(rows=24, cols=80), on_data=seen.extend, envs={"MINE": "yes"})
    await pty.resize(handle.pid, PtySize(rows=30, cols=100))
    await pty.send_stdin(handle.pid, b"stty size; echo $MINE; exit 7\n")
    with raises(CommandExitException) as caught:
        await handle.wait()
    same(caught.error.exit_code, 7)
    assert b"30 100\r\nyes\r\n" in seen, bytes(seen)
    handle = await pty.create(PtySize(rows=24, cols=80), on_data=seen.extend)
    same(await pty.kill(handle.pid), True)
    with raises(CommandExitException):
        await handle.wait()


async def lifecycle(sandbox):
    same(await sandbox.is_running(), True)
    info = await sandbox.get_info()
    same((info.metadata, info.state), ({"suite": "async"}, SandboxState.RUNNING))
    listed = AsyncSandbox.list(SandboxQuery(metadata={"suite": "async"}), limit=1)
    same([one.sandbox_id for one in await listed.next_items()], [sandbox.sandbox_id])
    same(listed.has_next, False)
    await sandbox.pause()
    same((await sandbox.is_running(), await sandbox.pause()), (False, False))
    reconnected = await AsyncSandbox.connect(sandbox.sandbox_id, timeout=100)
    same((await reconnected.commands.run("echo back")).stdout, "back\n")
    await sandbox.set_timeout(200)
    assert await sandbox.get_metrics()
    await sandbox.update_network({"deny_out": ["8.8.8.8"]})
    same((await sandbox.get_info()).network["deny_out"], ["8.8.8.8"])


async def ends_and_errors():
    with raises(AuthenticationException):
        await AsyncSandbox.create(timeout=10, api_key="e2b_" + "0" * 64)
    with raises(NotFoundException):
        await AsyncSandbox.connect("i" + "0" * 20)
    sandbox = await AsyncSandbox.create(timeout=60)
    handle = await sandbox.commands.run("sleep 600", background=True)
    same((await sandbox.kill(), await sandbox.kill()), (True, False))
    with raises(TimeoutException):
        await asyncio.wait_for(handle.wait(), 20)
    sandbox = await AsyncSandbox.create(timeout=60)
    handle = await sandbox.commands.run("sleep 600", background=True)
    await sandbox.set_timeout(0)
    with raises(TimeoutException):
        await asyncio.wait_for(handle.wait(), 20)
    with raises(TimeoutException):
        await sandbox.commands.run("true")
    # Concurrent creates and deletes.
    created = await asyncio.gather(*(AsyncSandbox.create(timeout=60) for _ in range(10)))
    same(await asyncio.gather(*(sandbox.kill() for sandbox in created)), [True] * 10)


async def main():
    sandbox = await AsyncSandbox.create(timeout=300, metadata={"suite": "async"}, envs={"A": "1"})
    async with sandbox:
        await commands(sandbox)
        await background(sandbox)
        await terminals(sandbox)
        await lifecycle(sandbox)
    await ends_and_errors()


asyncio.run(main())
