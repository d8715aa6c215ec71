"""The server is killed and started again: the session goes on, in the same sandbox."""

import asyncio
import os

from host import host, only_text


def restart():
    print("restart", flush=True)
    input()


async def main():
    # By its socket, whose path stays the same.
    elsewhere = {"ATOLL_URL": None, "ATOLL_API_KEY": None, "ATOLL_DATA_DIR": os.environ["ATOLL_DATA_DIR"]}
    async with host(**elsewhere) as session:
        own = await session.text("run_command", command="echo $ATOLL_SANDBOX_ID > id; cat id")
        await asyncio.to_thread(restart)
        assert await session.text("read_file", path="id") == own + "\n"
        # In the middle of a command: it goes on, and its output is whole.
        line = "for i in $(seq 40); do echo $i; sleep 0.1; done"
        running, begun = session.begin("run_command", command=line)
        await begun.wait()
        await asyncio.to_thread(restart)
        output = only_text(await running)
        assert output == "\n".join(str(i) for i in range(1, 41)), output
        # Between reading and writing of files, too.
        writes = [session.text("write_file", path=f"f{n}", content=str(n)) for n in range(20)]
        writes = asyncio.gather(*writes)
        await asyncio.to_thread(restart)
        await writes
        listed = (await session.text("list_files")).splitlines()
        assert len([line for line in listed if line.startswith("f")]) == 20, listed


asyncio.run(main())
