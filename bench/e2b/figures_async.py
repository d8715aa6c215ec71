"""A hundred sandboxes at once through E2B's asynchronous client for Python, three times."""

import asyncio
import json
import os
import time
import urllib.request

from e2b import AsyncSandbox


def filled():
    while True:
        with urllib.request.urlopen(os.environ["E2B_SANDBOX_URL"] + "/readyz") as answer:
            pool = json.load(answer)["pool"]
            if pool["warm"] >= 16 and pool["embryos"] >= 96:
                return
        time.sleep(0.01)


async def main():
    samples = []
    for _ in range(3):
        filled()
        begin = time.perf_counter()

        async def one():
            sandbox = await AsyncSandbox.create()
            samples.append((time.perf_counter() - begin) * 1000)
            return sandbox

        made = await asyncio.gather(*(one() for _ in range(100)))
        await asyncio.gather(*(sandbox.kill() for sandbox in made))
    print(json.dumps({"figure": "burst", "samples": samples}))


asyncio.run(main())
