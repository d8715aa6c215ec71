"""Until when something may take, and what that is: nothing waits without one."""

from __future__ import annotations

from time import monotonic

from .errors import DeadlineExceeded

#: As long as it takes, for what notices by itself that the other side is gone.
FOREVER = 1e9
#: A server that sends nothing for so long is gone: streams have a ping every 15 s, and WebSockets one every 30.
SILENCE = 50.0
#: httpx's own limit for a read of a stream. Deadlines and `SILENCE` end it earlier.
STALLED = 120.0


class Deadline:
    """A moment, and what has to be done by then."""

    __slots__ = ("seconds", "until", "what")

    def __init__(self, seconds: float, what: str) -> None:
        self.seconds = seconds
        self.until = monotonic() + seconds
        self.what = what

    def left(self) -> float:
        """Seconds until then, not below 0."""
        return max(0.0, self.until - monotonic())

    def exceeded(self) -> DeadlineExceeded:
        """What is said when it is over."""
        return DeadlineExceeded(
            f"{self.what} took longer than {self.seconds:g} s",
            remedy="give it a longer timeout, or look whether the server is busy",
        )
