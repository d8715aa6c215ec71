"""Files, with the asynchronous client."""

import asyncio
import io

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    FileNotFoundException,
    FileType,
    FilesystemEventType,
    InvalidArgumentException,
    NotEnoughSpaceException,
)

from expect import FILL, raises, same


async def contents(files):
    info = await files.write("hello.txt", "hello")
    same((info.name, info.path, info.type), ("hello.txt", "/home/user/hello.txt", FileType.FILE))
    same(await files.read("hello.txt"), "hello")
    same(bytes(await files.read("hello.txt", format="bytes")), b"hello")
    same(b"".join([chunk async for chunk in await files.read("hello.txt", format="stream")]), b"hello")
    await files.write("from-io", io.BytesIO(b"io" * 100_000))
    same(bytes(await files.read("from-io", format="bytes")), b"io" * 100_000)
    written = await files.write_files([{"path": f"many/{n}", "data": str(n)} for n in range(20)])
    same([info.name for info in written], [str(n) for n in range(20)])
    await files.write("packed", b"gzip " * 1000, gzip=True, metadata={"k": "v"})
    same(await files.read("packed", gzip=True), "gzip " * 1000)
    same((await files.get_info("packed")).metadata, {"k": "v"})
    # Concurrent writes and reads.
    await asyncio.gather(*(files.write(f"at-once/{n}", str(n)) for n in range(20)))
    read = await asyncio.gather(*(files.read(f"at-once/{n}") for n in range(20)))
    same(read, [str(n) for n in range(20)])


async def tree(files):
    same(await files.make_dir("t/u"), True)
    same(await files.make_dir("t/u"), False)
    await files.write("t/u/file", "x")
    same([it.path for it in await files.list("t", depth=2)], ["/home/user/t/u", "/home/user/t/u/file"])
    same((await files.rename("t/u/file", "t/moved")).path, "/home/user/t/moved")
    same((await files.get_info("t/moved")).size, 1)
    assert await files.exists("t/moved") and not await files.exists("t/u/file")
    await files.remove("t")
    assert not await files.exists("t")


async def refused(files):
    with raises(FileNotFoundException, "does not exist"):
        await files.read("missing")
    with raises(FileNotFoundException):
        await files.list("missing")
    with raises(InvalidArgumentException, "is a directory"):
        await files.read("/tmp")
    with raises(AuthenticationException):
        await files.read("hello.txt", user="no-such-user")
    with raises(AuthenticationException):
        await files.get_info("hello.txt", user="no-such-user")


async def full(sandbox):
    await sandbox.commands.run(FILL, user="root")
    with raises(NotEnoughSpaceException):
        await sandbox.files.write("/run/large", b"x" * (8 << 20))


async def watched(files):
    kind = FilesystemEventType
    seen = asyncio.Queue()
    await files.make_dir("w")
    # The asynchronous client streams events.
    handle = await files.watch_dir("w", on_event=seen.put_nowait, recursive=True, include_entry=True)
    await files.write("w/new", "12345")
    events = [await asyncio.wait_for(seen.get(), 20) for _ in range(3)]
    same([(it.type, it.name) for it in events], [(kind.CREATE, "new"), (kind.CHMOD, "new"), (kind.WRITE, "new")])
    same((events[2].entry.path, events[2].entry.owner), ("/home/user/w/new", "user"))
    await files.make_dir("w/later")
    await files.write("w/later/file", "x")
    while (event := await asyncio.wait_for(seen.get(), 20)).name != "later/file":
        pass
    same(event.type, kind.CREATE)
    await handle.stop()
    for path, failure in [("missing", FileNotFoundException), ("w/new", InvalidArgumentException)]:
        with raises(failure):
            await files.watch_dir(path, on_event=seen.put_nowait)


async def watch_ends():
    """A watch ends with its sandbox."""
    ended = asyncio.Event()
    sandbox = await AsyncSandbox.create(timeout=60)
    await sandbox.files.watch_dir("/tmp", on_event=lambda _: None, on_exit=lambda _: ended.set())
    await sandbox.kill()
    await asyncio.wait_for(ended.wait(), 20)


async def main():
    sandbox = await AsyncSandbox.create(timeout=120)
    try:
        for part in [contents, tree, watched, refused]:
            await part(sandbox.files)
        await full(sandbox)
        await watch_ends()
    finally:
        await sandbox.kill()


asyncio.run(main())
