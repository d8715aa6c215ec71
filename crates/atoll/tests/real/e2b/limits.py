"""A server with a low rate limit: excess requests fail with a rate limit error, in calls and in streams."""

import asyncio

from e2b import AsyncSandbox, RateLimitException



async def main():
    sandbox = await AsyncSandbox.create(timeout=60)
    for call in [
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.commands.list(),
        lambda: sandbox.files.list("/"),
        lambda: sandbox.files.read("/etc/hostname"),
    ]:
        results = await asyncio.gather(*(call() for _ in range(30)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, Exception)]
        assert refused, results
        for error in refused:
            assert isinstance(error, RateLimitException), repr(error)


asyncio.run(main())
