"""How often and how long something is tried again."""

from __future__ import annotations

import os
from time import monotonic

#: Seconds before the second try, and between two at most.
_FIRST, _MOST = 0.02, 1.0


class Patience:
    """Waits that grow, until a server has been away for too long."""

    __slots__ = ("_next", "_seconds", "_since")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.progress()

    def progress(self) -> None:
        """It went on: the next failure is a first one."""
        self._next = _FIRST
        self._since: float | None = None

    def pause(self) -> float | None:
        """How long to wait now, or nothing if it was enough. Some of it is chance, so that the clients of a server that
        comes back do not come all at once."""
        now = monotonic()
        self._since = self._since or now
        left = self._seconds - (now - self._since)
        if left <= 0:
            return None
        # The last try is at the very end.
        wait = min(left, self._next * (0.5 + os.urandom(1)[0] / 510))
        self._next = min(_MOST, self._next * 2)
        return wait
