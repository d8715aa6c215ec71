"""What differs between the two halves besides `async` and `await`: listeners, threads and tasks. This is the async
half; `_sync/concurrency.py` has the same names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")

#: A callback. The async half awaits what it returns, if that is awaitable.
Listener = Callable[[T], Awaitable[None] | None]

Lock = asyncio.Lock
sleep = asyncio.sleep
#: Connections belong to one event loop.
connection_scope = asyncio.get_running_loop


async def tell(listener: Listener[T], value: T) -> None:
    """Calls a listener and awaits its result, if there is one."""
    waiting = listener(value)
    if waiting is not None:
        await waiting


async def blocking(work: Callable[..., T], *arguments: Any) -> T:
    """Runs a blocking function in a thread."""
    return await asyncio.to_thread(work, *arguments)


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Runs a task during the block and cancels it afterwards."""
    task = asyncio.ensure_future(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
