"""A session removes the sandboxes that it created, however it ends, and no others."""

import asyncio
import json
import os
import signal
import subprocess

from host import BINARY, api, host, ids, only_text, wait_for


async def existing_sandbox():
    """A session for one existing sandbox."""
    web = api("POST", "/sandboxes", {"alias": "web"})["sandboxID"]
    async with host("--sandbox", "web") as session:
        tools = {tool.name: tool for tool in (await session.client.list_tools()).tools}
        assert not [name for name in tools if name.endswith(("sandbox", "sandboxes"))], tools
        assert all("sandbox" not in tool.input_schema["properties"] for tool in tools.values())
        assert "web" in session.client.instructions
        assert await session.text("run_command", command="echo $ATOLL_SANDBOX_ID") == web
        code, text = await session.fault("run_command", command="true", sandbox="other")
        assert code == "INVALID_REQUEST" and "unknown field `sandbox`" in text, text
        api("POST", f"/sandboxes/{web}/stop")
        code, text = await session.fault("list_files")
        assert code == "SANDBOX_STOPPED" and f"atoll start {web}" in text, text
        api("DELETE", f"/sandboxes/{web}")
        code, text = await session.fault("list_files")
        assert code == "SANDBOX_NOT_FOUND" and "--sandbox" in text, text
        # A new sandbox with the same name is used.
        web = api("POST", "/sandboxes", {"alias": "web"})["sandboxID"]
        assert await session.text("run_command", command="echo $ATOLL_SANDBOX_ID") == web
    # The session did not create the sandbox, so it does not remove it.
    assert ids() == {web}
    api("DELETE", f"/sandboxes/{web}")
    async with host("--sandbox", "missing") as session:
        assert (await session.fault("list_files"))[0] == "SANDBOX_NOT_FOUND"


async def lifetimes():
    """The results of a killed command and of later calls state that the lifetime of the sandbox ended."""
    web = api("POST", "/sandboxes", {"alias": "web"})["sandboxID"]
    async with host("--sandbox", "web") as session:
        call, started = session.begin("run_command", command="echo first; sleep 1000")
        await started.wait()
        api("POST", f"/sandboxes/{web}/timeout", {"timeout": 1})
        text = only_text(await call)
        ended = "the lifetime of sandbox web ended: it was deleted with its files"
        assert text == f"first\n[killed: {ended}]", text
        code, text = await session.fault("list_files")
        assert code == "SANDBOX_NOT_FOUND" and ended in text, text
    web = api("POST", "/sandboxes", {"alias": "web", "timeout": 1, "onTimeout": "stop"})["sandboxID"]
    wait_for("the end of its lifetime", lambda: api("GET", f"/sandboxes/{web}")["state"] == "stopped")
    async with host("--sandbox", "web") as session:
        code, text = await session.fault("list_files")
        assert code == "SANDBOX_STOPPED" and "the lifetime of sandbox web ended" in text, text
    api("DELETE", f"/sandboxes/{web}")


async def created_sandboxes():
    async with host("--memory", "300M", "--timeout", "1h") as session:
        await session.text("run_command", command="true")
        await session.text("create_sandbox")
        assert len(ids()) == 2
        assert {sandbox["memoryMB"] for sandbox in api("GET", "/sandboxes")} == {300}
    assert not ids()
    async with host("--keep") as session:
        await session.text("run_command", command="true")
    [kept] = ids()
    api("DELETE", f"/sandboxes/{kept}")


async def session_ends():
    # The session extends the lifetime of its sandbox. After the session was killed the timeout ends the sandbox.
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
    # A host that sends nothing.
    done = subprocess.run([BINARY, "mcp"], capture_output=True, timeout=30, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and not done.stdout and not done.stderr, done
    # A host that closes its end at once receives all responses, one per line, also after an invalid message.
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
    responses = {response.get("id"): response for response in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, done
    assert responses[1]["result"]["protocolVersion"] == "2025-06-18", responses
    assert responses[2]["result"]["content"][0]["text"] == "hello", responses
    assert responses[3]["error"]["code"] == -32601, responses


asyncio.run(existing_sandbox())
asyncio.run(lifetimes())
asyncio.run(created_sandboxes())
asyncio.run(session_ends())
configuration()
