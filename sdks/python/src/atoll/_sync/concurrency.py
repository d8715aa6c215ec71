"""What differs between the two halves besides `async` and `await`: listeners, threads and tasks. This is the sync half;
`_async/concurrency.py` has the same names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any, TypeVar

__all__ = ["Listener", "Lock", "beside", "blocking", "connection_scope", "sleep", "tell"]

T = TypeVar("T")

#: A callback.
Listener = Callable[[T], object]

Lock = threading.Lock


class _Process:
    """All threads of a process share connections."""


_PROCESS = _Process()


def connection_scope() -> _Process:
    """Connections belong to the process."""
    return _PROCESS


def tell(listener: Listener[T], value: T) -> None:
    """Calls a listener."""
    listener(value)


def blocking(work: Callable[..., T], *arguments: Any) -> T:
    """Runs a blocking function."""
    return work(*arguments)


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Starts a thread before the block. It is not joined: `work` ends by itself."""
    threading.Thread(target=work, daemon=True).start()
    yield
