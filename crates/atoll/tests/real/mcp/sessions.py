"""What a session made goes with it, however it ends; what was there before stays."""

import asyncio
import json
import os
import signal
import subprocess

from host import BINARY, ask, host, ids, only_text, wait_for


async def given():
    """A session for one sandbox."""
    web = ask("POST", "/sandboxes", {"alias": "web"})["sandboxID"]
    async with host("--sandbox", "web") as session:
        tools = {tool.name: tool for tool in (await session.client.list_tools()).tools}
        assert not [name for name in tools if name.endswith(("sandbox", "sandboxes"))], tools
        assert all("sandbox" not in tool.input_schema["properties"] for tool in tools.values())
        assert "web" in session.client.instructions
        assert await session.text("run_command", command="echo $ATOLL_SANDBOX_ID") == web
        code, text = await session.fault("run_command", command="true", sandbox="other")
        assert code == "INVALID_REQUEST" and "unknown field `sandbox`" in text, text
        ask("POST", f"/sandboxes/{web}/stop")
        code, text = await session.fault("list_files")
        assert code == "SANDBOX_STOPPED" and f"atoll start {web}" in text, text
        ask("DELETE", f"/sandboxes/{web}")
        code, text = await session.fault("list_files")
        assert code == "SANDBOX_NOT_FOUND" and "--sandbox" in text, text
        # A later sandbox of this name is used too.
        web = ask("POST", "/sandboxes", {"alias": "web"})["sandboxID"]
        assert await session.text("run_command", command="echo $ATOLL_SANDBOX_ID") == web
    # It was there before.
    assert ids() == {web}
    ask("DELETE", f"/sandboxes/{web}")
    async with host("--sandbox", "missing") as session:
        assert (await session.fault("list_files"))[0] == "SANDBOX_NOT_FOUND"


async def lifetimes():
    """A command, and the calls after it, say that the lifetime of their sandbox ended."""
    web = ask("POST", "/sandboxes", {"alias": "web"})["sandboxID"]
    async with host("--sandbox", "web") as session:
        call, begun = session.begin("run_command", command="echo first; sleep 1000")
        await begun.wait()
        ask("POST", f"/sandboxes/{web}/timeout", {"timeout": 1})
        text = only_text(await call)
        ended = "the lifetime of sandbox web ended: it was deleted with its files"
        assert text == f"first\n[killed: {ended}]", text
        code, text = await session.fault("list_files")
        assert code == "SANDBOX_NOT_FOUND" and ended in text, text
    web = ask("POST", "/sandboxes", {"alias": "web", "timeout": 1, "onTimeout": "stop"})["sandboxID"]
    wait_for("the end of its lifetime", lambda: ask("GET", f"/sandboxes/{web}")["state"] == "stopped")
    async with host("--sandbox", "web") as session:
        code, text = await session.fault("list_files")
        assert code == "SANDBOX_STOPPED" and "the lifetime of sandbox web ended" in text, text
    ask("DELETE", f"/sandboxes/{web}")


async def made():
    async with host("--memory", "300M", "--timeout", "1h") as session:
        await session.text("run_command", command="true")
        await session.text("create_sandbox")
        assert len(ids()) == 2
        assert {sandbox["memoryMB"] for sandbox in ask("GET", "/sandboxes")} == {300}
    assert not ids()
    async with host("--keep") as session:
        await session.text("run_command", command="true")
    [kept] = ids()
    ask("DELETE", f"/sandboxes/{kept}")


async def ended():
    # It lives on while the session does, whatever its time; a session that is killed leaves it for so long.
    async with host("--timeout", "3s") as session:
        await session.text("run_command", command="sleep 7")
        assert await session.text("run_command", command="echo alive") == "alive"
        os.kill(session.pid, signal.SIGKILL)
    assert len(ids()) <= 1
    wait_for("the end of its sandbox", lambda: not ids())
    async with host() as session:
        await session.text("run_command", command="true")
        os.kill(session.pid, signal.SIGTERM)
        wait_for("the end of its sandbox", lambda: not ids())


def configuration():
    """Configuration errors, and a host that sends invalid messages."""
    for flags, part in [
        (["--sandbox", "web", "--keep"], b"cannot be used with"),
        (["--url", "nonsense"], b"nonsense"),
        (["--timeout", "soon"], b"soon"),
    ]:
        done = subprocess.run([BINARY, "mcp", *flags], capture_output=True, timeout=30, stdin=subprocess.DEVNULL)
        assert done.returncode == 2 and part in done.stderr and not done.stdout, done
    # A host that says nothing.
    done = subprocess.run([BINARY, "mcp"], capture_output=True, timeout=30, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and not done.stdout and not done.stderr, done
    # One that closes its end at once is answered all the same, a line a message, whatever made no sense before.
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "run_command", "arguments": {"command": "echo hello"}}
    messages = [
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
        {"id": 3, "method": "no/such/method"},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0"} | message) + "\n" for message in messages)
    lines = lines.replace("\n", "\nnonsense\n", 1)
    done = subprocess.run([BINARY, "mcp"], capture_output=True, timeout=30, input=lines.encode())
    answers = {answer.get("id"): answer for answer in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, done
    assert answers[1]["result"]["protocolVersion"] == "2025-06-18", answers
    assert answers[2]["result"]["content"][0]["text"] == "hello", answers
    assert answers[3]["error"]["code"] == -32601, answers


asyncio.run(given())
asyncio.run(lifetimes())
asyncio.run(made())
asyncio.run(ended())
configuration()
