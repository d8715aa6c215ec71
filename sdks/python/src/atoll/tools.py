"""Four tools for agents that call functions: `read_file`, `write_file`, `execute_code` and `bash`.

    from atoll import Sandbox
    from atoll.tools import Tools

    with Sandbox.create() as sandbox:
        tools = Tools(sandbox)
        answer = model.create(tools=tools.openai(), ...)     # or tools.anthropic()
        result = tools.call("bash", {"command": "ls"})       # what the model asked for

A call never raises for what the model did wrong: the result says so, for the model to read. `AsyncTools` is the same on
an event loop. What they are is in `sdks/tools.json`, for all SDKs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._sync.tools import Tools
from ._tools import LONGEST, SCHEMAS

if TYPE_CHECKING:
    from ._async.tools import AsyncTools

__all__ = ["LONGEST", "SCHEMAS", "AsyncTools", "Tools"]


def __getattr__(name: str) -> Any:
    if name != "AsyncTools":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Found when it is asked for: asyncio takes a while to import.
    from ._async.tools import AsyncTools

    return AsyncTools
