"""Results of every tool, in both versions of the protocol."""

import asyncio

from host import api, host, ids

TOOLS = {
    # name: read-only, destructive, idempotent
    "run_command": (False, True, False),
    "read_file": (True, False, True),
    "write_file": (False, True, True),
    "edit_file": (False, True, False),
    "list_files": (True, False, True),
    "search_files": (True, False, True),
    "remove_file": (False, True, True),
    "create_sandbox": (False, False, False),
    "list_sandboxes": (True, False, True),
    "remove_sandbox": (False, True, True),
}
# An image of one pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


async def tool_list(session):
    client = session.client
    assert client.server_info.name == "atoll"
    assert "no network" in client.instructions
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    hints = {name: tool.annotations for name, tool in tools.items()}
    flags = {name: (hint.read_only_hint, hint.destructive_hint, hint.idempotent_hint) for name, hint in hints.items()}
    assert flags == TOOLS, flags
    for name, tool in tools.items():
        assert tool.title and tool.description, name
        fields = tool.input_schema["properties"]
        assert ("sandbox" in fields) == (name not in ("create_sandbox", "list_sandboxes")), name
        assert all(isinstance(field["type"], str) and field["description"] for field in fields.values()), fields
    assert tools["remove_sandbox"].input_schema["required"] == ["sandbox"]
    assert tools["read_file"].input_schema["properties"]["start_line"]["minimum"] == 1
    # Listing the tools creates no sandbox.
    assert not ids()


async def commands(session):
    output = await session.text("run_command", command="echo out; echo err >&2; exit 3")
    assert output == "out\n[stderr]\nerr\n[exit code 3]", output
    assert await session.text("run_command", command="true") == "[no output]"
    output = await session.text("run_command", command="printf", args=["%s|", "a b", "$HOME"])
    assert output == "a b|$HOME|", output
    output = await session.text("run_command", command="pwd; echo $A", cwd="/tmp", env={"A": "b c"})
    assert output == "/tmp\nb c", output
    # Null values count as omitted.
    assert await session.text("run_command", command="echo x", cwd=None, env=None, timeout=None, sandbox=None) == "x"
    # Background commands keep running.
    await session.text("run_command", command="sleep 1000 > log 2>&1 & echo $! > pid")
    assert await session.text("run_command", command="kill -0 $(cat pid) && echo alive") == "alive"


async def files(session):
    written = await session.text("write_file", path="work/a.txt", content="one\ntwo\nthree\nzwölf\n")
    assert written == "wrote 21 bytes to /home/user/work/a.txt", written
    assert await session.text("read_file", path="work/a.txt") == "one\ntwo\nthree\nzwölf\n"
    part = await session.text("read_file", path="work/a.txt", start_line=2, end_line=3)
    assert part == "two\nthree\n\n[there is more: go on with start_line 4]", part
    last = await session.text("read_file", path="work/a.txt", start_line=4)
    assert last == "zwölf\n", last
    await session.text("write_file", path="empty", content="")
    assert await session.text("read_file", path="empty") == "[empty]"

    # A long file is read in parts of whole lines.
    lines = [f"line {number} {'x' * 90}\n" for number in range(1, 1001)]
    await session.text("write_file", path="long", content="".join(lines))
    got, start = "", "1"
    while start:
        part = await session.text("read_file", path="long", start_line=int(start))
        part, _, start = part.removesuffix("]").partition("\n[there is more: go on with start_line ")
        assert len(part) <= 30_000
        got += part
    assert got == "".join(lines)
    await session.text("run_command", command="head -c 1000000 /dev/zero | tr '\\0' y > line")
    assert "goes on" in await session.text("read_file", path="line")

    await session.text("run_command", command=f"echo {PNG} | base64 -d > dot.png")
    shown = await session.call("read_file", path="dot.png")
    assert shown.content[1].type == "image" and shown.content[1].data == PNG, shown
    assert shown.content[1].mime_type == "image/png"

    output = await session.text("edit_file", path="work/a.txt", old_text="two\nthree", new_text="2\n3")
    assert "line 2" in output, output
    assert await session.text("read_file", path="work/a.txt") == "one\n2\n3\nzwölf\n"
    await session.text("write_file", path="many", content="a b a\na\n")
    edited = await session.text("edit_file", path="many", old_text="a", new_text="cc", replace_all=True)
    assert edited == "edited many in 3 places, at lines 1, 1, 2", edited
    assert await session.text("read_file", path="many") == "cc b cc\ncc\n"
    # An edit preserves bytes that are not UTF-8, and the mode.
    await session.text("run_command", command="printf '\\377\\0key=1\\n' > raw; chmod 700 raw")
    await session.text("edit_file", path="raw", old_text="key=1", new_text="key=2")
    assert await session.text("run_command", command="od -c raw | head -1; stat -c %a raw") == (
        "0000000 377  \\0   k   e   y   =   2  \\n\n700"
    )
    # No concurrent edit is lost.
    await session.text("write_file", path="race", content="".join(f"<{n}>" for n in range(10)))
    edits = (session.text("edit_file", path="race", old_text=f"<{n}>", new_text=f"[{n}]") for n in range(10))
    await asyncio.gather(*edits)
    assert await session.text("read_file", path="race") == "".join(f"[{n}]" for n in range(10))

    assert await session.text("list_files", path="work") == "a.txt (15 bytes)"
    assert "work/a.txt (15 bytes)" in await session.text("list_files", depth=2)
    await session.text(
        "run_command", command="mkdir m && cd m && seq 600 | xargs touch && ln -s /etc/passwd /home/user/link"
    )
    listed = await session.text("list_files", path="m")
    assert len(listed.splitlines()) == 501 and "[there is more" in listed, listed
    # The size of a list with long names is bounded.
    await session.text(
        "run_command", command="cd m && seq 200 | sed 's/$/'$(printf 'n%.0s' $(seq 200))'/' | xargs touch"
    )
    listed = await session.text("list_files", path="m")
    assert len(listed) < 31_000 and "[there is more" in listed
    assert "link -> /etc/passwd" in await session.text("list_files")
    assert await session.text("search_files", content="zwölf") == "work/a.txt:4: zwölf"
    assert "work/a.txt" in await session.text("search_files", name="*.txt")
    assert await session.text("search_files", path="/etc", content="no such text at all") == "nothing was found"
    await session.text("remove_file", path="work/a.txt")
    await session.text("remove_file", path="work")
    await session.text("remove_file", path="m", recursive=True)
    assert "work" not in await session.text("list_files")


async def sandboxes(session):
    [own] = ids()
    created = await session.text("create_sandbox", name="other")
    [other] = ids() - {own}
    assert created == f"made the sandbox {other} (other)", created
    await session.text("write_file", sandbox="other", path="f", content="there")
    assert await session.text("read_file", sandbox=other, path="f") == "there"
    assert (await session.fault("read_file", path="f"))[0] == "FILE_NOT_FOUND"
    listed = (await session.text("list_sandboxes")).splitlines()
    assert listed == [f"{other} (other): running", f"{own}: running, the session's own"], listed
    await session.text("remove_sandbox", sandbox="other")
    assert ids() == {own}
    # If the session's own sandbox is removed, the next call creates another one.
    await session.text("remove_sandbox", sandbox=own)
    assert await session.text("list_files")
    [another] = ids()
    assert another != own
    # A stopped sandbox is started again, and the agent is notified.
    await session.text("write_file", path="kept", content="here")
    api("POST", f"/sandboxes/{another}/stop")
    code, text = await session.fault("read_file", path="kept")
    assert code == "SANDBOX_STOPPED" and "started again" in text, text
    assert await session.text("read_file", path="kept") == "here"
    # A sandbox that another client deleted is reported, once.
    api("DELETE", f"/sandboxes/{another}")
    code, text = await session.fault("list_files")
    assert code == "SANDBOX_NOT_FOUND" and "with its files" in text and "next call" in text, text
    assert await session.text("list_files")


async def main():
    for mode in ("auto", "legacy"):
        async with host(mode=mode) as session:
            await tool_list(session)
            await commands(session)
            await files(session)
            await sandboxes(session)
        assert not ids()
    # Concurrent first calls share one sandbox.
    async with host() as session:
        await asyncio.gather(*(session.text("run_command", command="true") for _ in range(4)))
        assert len(ids()) == 1


asyncio.run(main())
