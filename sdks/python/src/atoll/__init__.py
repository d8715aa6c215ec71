"""Isolated Linux sandboxes: run commands, move files, open terminals, reach ports.

    from atoll import Sandbox

    with Sandbox.create() as sandbox:
        print(sandbox.commands.run("uname -a").stdout)

`Sandbox` is the synchronous API. `AsyncSandbox` has the same methods for asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors
from ._data import Progress
from ._sync.client import Client
from ._sync.commands import CommandHandle
from ._sync.forward import Forward
from ._sync.pty import Pty
from ._sync.sandbox import Sandbox
from ._version import VERSION as __version__
from .errors import AtollError
from .models import CommandInfo, CommandResult, FileEvent, FileInfo, Output, SandboxInfo

if TYPE_CHECKING:
    from ._async.client import AsyncClient
    from ._async.commands import AsyncCommandHandle
    from ._async.forward import AsyncForward
    from ._async.pty import AsyncPty
    from ._async.sandbox import AsyncSandbox

__all__ = [
    "AsyncClient",
    "AsyncCommandHandle",
    "AsyncForward",
    "AsyncPty",
    "AsyncSandbox",
    "AtollError",
    "Client",
    "CommandHandle",
    "CommandInfo",
    "CommandResult",
    "FileEvent",
    "FileInfo",
    "Forward",
    "Output",
    "Progress",
    "Pty",
    "Sandbox",
    "SandboxInfo",
    "__version__",
    "errors",
]

#: Imported on first use: most programs need one half, and importing asyncio is slow.
_ASYNC = {
    "AsyncClient": "client",
    "AsyncCommandHandle": "commands",
    "AsyncForward": "forward",
    "AsyncPty": "pty",
    "AsyncSandbox": "sandbox",
}


def __getattr__(name: str) -> Any:
    if name not in _ASYNC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"._async.{_ASYNC[name]}", __name__), name)
