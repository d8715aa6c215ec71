"""After the server was killed and started again, the session continues in the same sandbox."""

import asyncio
import os

from host import host, only_text


def restart():
    print("restart", flush=True)
    input()


async def main():
    # Connected by the operator's socket, whose path stays the same.
    variables = {"ATOLL_URL": None, "ATOLL_API_KEY": None, "ATOLL_DATA_DIR": os.environ["ATOLL_DATA_DIR"]}
    async with host(**variables) as session:
        own = await session.text("run_command", command="echo $ATOLL_SANDBOX_ID > id; cat id")
        await asyncio.to_thread(restart)
        assert await session.text("read_file", path="id") == own + "\n"
        # During a command: it continues, and its output is complete.
        line = "for i in $(seq 40); do echo $i; sleep 0.1; done"
        running, started = session.begin("run_command", command=line)
        await started.wait()
        await asyncio.to_thread(restart)
        output = only_text(await running)
        assert output == "\n".join(str(i) for i in range(1, 41)), output
        # During file writes.
        writes = [session.text("write_file", path=f"f{n}", content=str(n)) for n in range(20)]
        writes = asyncio.gather(*writes)
        await asyncio.to_thread(restart)
        await writes
        listed = (await session.text("list_files")).splitlines()
        assert len([line for line in listed if line.startswith("f")]) == 20, listed


asyncio.run(main())
