"""A sandbox's port as a port of this machine: the one of `_async/forward.py`, on a loop in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..errors import AtollError
from .door import Door
from .websocket import run

if TYPE_CHECKING:
    from .._async.forward import AsyncForward


class Forward:
    """A port of this machine that leads into a sandbox.

    Attributes:
        host: Where this machine listens.
        port: On this machine.
        remote_port: In the sandbox.
    """

    def __init__(self, inner: AsyncForward) -> None:
        self._inner = inner
        self.host, self.port, self.remote_port = inner.host, inner.port, inner.remote_port

    @classmethod
    def open(cls, door: Door, remote_port: int, local_port: int, host: str) -> Forward:
        """Begins to listen."""
        from .._async.door import AsyncDoor
        from .._async.forward import AsyncForward

        # Only what both clients have is used.
        tunnels = AsyncDoor(cast("Any", door.client), door.id)
        return cls(run(AsyncForward.open(tunnels, remote_port, local_port, host)))

    @property
    def url(self) -> str:
        """The port as a URL."""
        return self._inner.url

    @property
    def last_error(self) -> AtollError | None:
        """Why the last connection that failed did, if one has: nothing may listen in the sandbox."""
        return self._inner.last_error

    def __repr__(self) -> str:
        return repr(self._inner).replace("Async", "", 1)

    def __enter__(self) -> Forward:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening and ends the open connections."""
        run(self._inner.close())
