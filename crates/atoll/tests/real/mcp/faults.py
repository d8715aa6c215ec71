"""Errors have a text that an agent can act on, and the session continues after them."""

import asyncio
import os

from host import api, host
from mcp import MCPError


async def inputs(session):
    for name, arguments, part in [
        ("read_file", {}, "missing field `path`"),
        ("read_file", {"path": 3}, "path: invalid type"),
        ("read_file", {"path": "f", "lines": 2}, "unknown field `lines`"),
        ("read_file", {"path": "f", "start_line": 0}, "start_line"),
        ("read_file", {"path": "f", "start_line": 5, "end_line": 4}, "start_line"),
        ("read_file", {"path": "f", "sandbox": 7}, "sandbox: the id or the name"),
        ("run_command", {"command": ["ls"]}, "command: invalid type"),
        ("run_command", {"command": "ls", "timeout": 0}, "timeout is 0"),
        ("run_command", {"command": "ls", "args": ["a", 1]}, "args[1]: invalid type"),
        ("edit_file", {"path": "f", "old_text": "", "new_text": "x"}, "old_text is empty"),
        ("search_files", {}, "nothing is looked for"),
        ("create_sandbox", {"sandbox": "x"}, "unknown field `sandbox`"),
        ("create_sandbox", {"name": "Not A Name"}, "alias"),
        ("remove_sandbox", {}, "sandbox is missing"),
    ]:
        code, text = await session.fault(name, **arguments)
        assert code == "INVALID_REQUEST" and part in text and "hint: " in text, text
    assert (await session.fault("create_sandbox", template="nothing"))[0] == "UNKNOWN_TEMPLATE"
    # An unknown tool is a protocol error.
    try:
        await session.call("no_such_tool")
        raise AssertionError("a tool that is not there answers")
    except MCPError as error:
        assert "no_such_tool" in str(error), error


async def paths(session):
    await session.text(
        "run_command",
        command="mkdir d; touch d/f; printf 'a\\0b' > binary; echo one > f; mkfifo pipe; printf 'a\\nb' > unended",
    )
    for name, arguments, expected in [
        ("read_file", {"path": "nothing"}, "FILE_NOT_FOUND"),
        ("read_file", {"path": "d"}, "NOT_A_FILE"),
        ("read_file", {"path": "pipe"}, "NOT_A_FILE"),
        ("read_file", {"path": "binary"}, "INVALID_REQUEST"),
        ("read_file", {"path": "f", "start_line": 3}, "INVALID_REQUEST"),
        ("read_file", {"path": "unended", "start_line": 3}, "INVALID_REQUEST"),
        ("read_file", {"path": "/etc/shadow"}, "PERMISSION_DENIED"),
        ("write_file", {"path": "d", "content": "x"}, "NOT_A_FILE"),
        ("write_file", {"path": "f/g", "content": "x"}, "NOT_A_DIRECTORY"),
        ("write_file", {"path": "/etc/passwd", "content": "x"}, "PERMISSION_DENIED"),
        ("edit_file", {"path": "nothing", "old_text": "a", "new_text": "b"}, "FILE_NOT_FOUND"),
        ("edit_file", {"path": "d", "old_text": "a", "new_text": "b"}, "NOT_A_FILE"),
        ("edit_file", {"path": "f", "old_text": "two", "new_text": "b"}, "INVALID_REQUEST"),
        ("list_files", {"path": "nothing"}, "FILE_NOT_FOUND"),
        ("list_files", {"path": "f"}, "NOT_A_DIRECTORY"),
        ("search_files", {"path": "nothing", "name": "x"}, "FILE_NOT_FOUND"),
        ("remove_file", {"path": "d"}, "CONFLICT"),
        ("run_command", {"command": "true", "cwd": "nothing"}, "CWD_NOT_FOUND"),
        ("run_command", {"command": "nothing", "args": []}, "PROGRAM_NOT_FOUND"),
        ("run_command", {"command": "true", "sandbox": "missing"}, "SANDBOX_NOT_FOUND"),
        ("remove_sandbox", {"sandbox": "missing"}, "SANDBOX_NOT_FOUND"),
    ]:
        code, text = await session.fault(name, **arguments)
        assert code == expected, (name, arguments, text)
    await removal(session)
    _, text = await session.fault("read_file", path="unended", start_line=3)
    assert "has 2 lines" in text, text
    _, text = await session.fault("read_file", path="f", sandbox="missing")
    assert "list_sandboxes" in text, text
    _, text = await session.fault("edit_file", path="f", old_text="two", new_text="b")
    assert "not in" in text and "read the file" in text, text
    await session.text("write_file", path="f", content="a\na\n")
    _, text = await session.fault("edit_file", path="f", old_text="a", new_text="b")
    assert "2 times" in text and "replace_all" in text, text
    assert await session.text("read_file", path="f") == "a\na\n"


async def removal(session):
    """Removal of a missing file is an error. After a broken connection it can be a success: the first attempt of the
    request may have removed the file."""
    result = await session.call("remove_file", path="nothing")
    if result.is_error:
        assert result.structured_content["code"] == "FILE_NOT_FOUND", result
    else:
        assert os.environ["SESSION_URL"] != os.environ["ATOLL_URL"], result
    # Repeated, so that the connection breaks at different points: an existing file is never reported as missing.
    for number in range(20):
        await session.text("write_file", path="gone", content=str(number))
        await session.text("remove_file", path="gone")
        assert (await session.fault("read_file", path="gone"))[0] == "FILE_NOT_FOUND"
    for _ in range(5):
        created = (await session.text("create_sandbox")).split()[-1]
        await session.text("remove_sandbox", sandbox=created)
        code, _ = await session.fault("remove_sandbox", sandbox=created)
        assert code == "SANDBOX_NOT_FOUND"


async def main():
    async with host() as session:
        await inputs(session)
        await paths(session)
    async with host(ATOLL_API_KEY="atl_" + "0" * 64) as session:
        code, text = await session.fault("run_command", command="true")
        assert code == "INVALID_API_KEY" and "ATOLL_API_KEY" in text, text
    # A read-only key.
    key = api("POST", "/keys", {"name": "reader", "scope": "sandbox:read"})["key"]
    async with host(ATOLL_API_KEY=key) as session:
        assert await session.text("list_sandboxes") == "there are none"
        code, text = await session.fault("run_command", command="true")
        assert code == "PERMISSION_DENIED" and "sandbox:*" in text, text
    async with host(ATOLL_API_KEY=None) as session:
        assert (await session.fault("list_sandboxes"))[0] == "MISSING_API_KEY"
    async with host(ATOLL_URL="http://127.0.0.1:1") as session:
        code, text = await session.fault("run_command", command="true")
        assert code == "SERVER_UNREACHABLE" and "atoll serve" in text, text
        # The session works without a server.
        assert (await session.client.list_tools()).tools


asyncio.run(main())
