"""Deadlines. Every wait of this package has one."""

from __future__ import annotations

from time import monotonic

from .errors import DeadlineExceeded

#: No limit, in seconds, for operations that detect a lost peer themselves.
FOREVER = 1e9
#: Idle timeout in seconds: servers ping event streams every 15 s and WebSockets every 30 s.
SILENCE = 50.0
#: httpx's own limit for a read of a stream. Deadlines and `SILENCE` end it earlier.
STALLED = 120.0


class Deadline:
    """A time limit, and the operation that it applies to."""

    __slots__ = ("seconds", "until", "what")

    def __init__(self, seconds: float, what: str) -> None:
        self.seconds = seconds
        self.until = monotonic() + seconds
        self.what = what

    def left(self) -> float:
        """Remaining seconds, at least 0."""
        return max(0.0, self.until - monotonic())

    def exceeded(self) -> DeadlineExceeded:
        """The error for an exceeded deadline."""
        return DeadlineExceeded(
            f"{self.what} took longer than {self.seconds:g} s",
            remedy="give it a longer timeout, or check whether the server is overloaded",
        )
