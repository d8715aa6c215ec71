"""Local port forwarding to a sandbox: that of `_async/forward.py`, on a loop in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..errors import AtollError
from .sandbox_api import SandboxApi
from .websocket import run

if TYPE_CHECKING:
    from .._async.forward import AsyncForward


class Forward:
    """A local port that is forwarded to a port of a sandbox.

    Attributes:
        host: The local address.
        port: The local port.
        remote_port: The port in the sandbox.
    """

    def __init__(self, inner: AsyncForward) -> None:
        self._inner = inner
        self.host, self.port, self.remote_port = inner.host, inner.port, inner.remote_port

    @classmethod
    def open(cls, api: SandboxApi, remote_port: int, local_port: int, host: str) -> Forward:
        """Starts listening."""
        from .._async.forward import AsyncForward
        from .._async.sandbox_api import AsyncSandboxApi

        # Only what both clients have is used.
        tunnels = AsyncSandboxApi(cast("Any", api.client), api.id)
        return cls(run(AsyncForward.open(tunnels, remote_port, local_port, host)))

    @property
    def url(self) -> str:
        """The port as a URL."""
        return self._inner.url

    @property
    def last_error(self) -> AtollError | None:
        """The error of the last connection that failed, such as a port without a listener."""
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
