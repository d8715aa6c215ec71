"""Four tools for agents that call functions: `read_file`, `write_file`, `execute_code` and `bash`.

    from atoll import Sandbox
    from atoll.tools import Tools

    with Sandbox.create() as sandbox:
        tools = Tools(sandbox)
        response = model.create(tools=tools.openai(), ...)     # or tools.anthropic()
        result = tools.call("bash", {"command": "ls"})       # the call of the model

A call does not raise for mistakes of the model: its result describes the mistake for the model. `AsyncTools` is the
variant for asyncio. `sdks/tools.json` has the definitions for all SDKs.
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
    # Imported on first use, as importing asyncio is slow.
    from ._async.tools import AsyncTools

    return AsyncTools
