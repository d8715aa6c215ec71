"""Function-calling tools that run in one sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from .. import _tools
from ..errors import AtollError, CommandTimeout
from .sandbox import AsyncSandbox


class AsyncTools:
    """The tools `read_file`, `write_file`, `execute_code` and `bash`, in one sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    @staticmethod
    def openai() -> list[dict[str, Any]]:
        """The schemas in the format of OpenAI's chat completions and compatible APIs."""
        return [{"type": "function", "function": deepcopy(schema)} for schema in _tools.SCHEMAS]

    @staticmethod
    def anthropic() -> list[dict[str, Any]]:
        """The schemas in the format of Anthropic's messages."""
        return [
            {"name": one["name"], "description": one["description"], "input_schema": deepcopy(one["parameters"])}
            for one in _tools.SCHEMAS
        ]

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Executes a tool call and returns its result as text for the model. Mistakes of the model are returned as text
        too; errors of the server or the sandbox are raised.

        Args:
            name: The tool's name.
            arguments: The tool's parameters, as a JSON text or a mapping.
        """
        try:
            return _tools.short(await self._do(name, _tools.validate_arguments(name, arguments)))
        except _tools.Fault as fault:
            return f"error: {fault}"
        except AtollError as error:
            if not _tools.is_model_error(error):
                raise
            return f"error: {error.message}" + (f" ({error.remedy})" if error.remedy else "")

    async def _do(self, name: str, given: dict[str, Any]) -> str:
        files = self._sandbox.files
        cwd, timeout = given.get("cwd"), given.get("timeout", 60)
        if name == "read_file":
            return _tools.lines(await files.read(given["path"]), given.get("start_line"), given.get("end_line"))
        if name == "write_file":
            written = await files.write(given["path"], given["content"])
            return f"wrote {written.size} bytes to {written.path}"
        if name == "execute_code":
            program = _tools.LANGUAGES[given.get("language", "python")]
            return await self._run(program, cwd, timeout, given["code"])
        return await self._run(["bash", "-c", given["command"]], cwd, timeout, None)

    async def _run(self, cmd: list[str], cwd: str | None, timeout: float, stdin: str | None) -> str:
        try:
            result = await self._sandbox.commands.run(cmd, cwd=cwd, timeout=timeout, stdin=stdin)
        except CommandTimeout as error:
            assert error.result is not None
            result = error.result
        return _tools.outcome(result)
