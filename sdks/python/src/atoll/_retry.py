"""Retry policy: exponential backoff with a time limit."""

from __future__ import annotations

import os
from time import monotonic

#: First and longest delay between attempts, in seconds.
_FIRST, _MOST = 0.02, 1.0


class RetryPolicy:
    """Delays between attempts, which grow until a server has been unreachable for too long."""

    __slots__ = ("_next", "_seconds", "_since")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.progress()

    def progress(self) -> None:
        """Resets the delays and the time limit after progress."""
        self._next = _FIRST
        self._since: float | None = None

    def pause(self) -> float | None:
        """Returns the delay before the next attempt in seconds, or `None` if the time limit is reached. Jitter keeps
        the clients of a restarted server from reconnecting at the same time."""
        now = monotonic()
        self._since = self._since or now
        left = self._seconds - (now - self._since)
        if left <= 0:
            return None
        # The last attempt is at the time limit.
        wait = min(left, self._next * (0.5 + os.urandom(1)[0] / 510))
        self._next = min(_MOST, self._next * 2)
        return wait
