# Made from _async/tools.py by generate.py.
"""The tools for agents, in one sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from .. import _tools
from ..errors import AtollError, CommandTimeout
from .sandbox import Sandbox


class Tools:
    """The tools `read_file`, `write_file`, `execute_code` and `bash`, in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @staticmethod
    def openai() -> list[dict[str, Any]]:
        """The schemas as OpenAI's chat completions, and what is like them, take them."""
        return [{"type": "function", "function": deepcopy(schema)} for schema in _tools.SCHEMAS]

    @staticmethod
    def anthropic() -> list[dict[str, Any]]:
        """The schemas as Anthropic's messages take them."""
        return [
            {"name": one["name"], "description": one["description"], "input_schema": deepcopy(one["parameters"])}
            for one in _tools.SCHEMAS
        ]

    def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Does what a model asked for, and tells it the result. What the model did wrong is told to it, too; what is
        wrong with the server or the sandbox is raised.

        Args:
            name: Which tool.
            arguments: Its parameters, as JSON or read from it.
        """
        try:
            return _tools.short(self._do(name, _tools.looked_at(name, arguments)))
        except _tools.Fault as fault:
            return f"error: {fault}"
        except AtollError as error:
            if not _tools.models_own(error):
                raise
            return f"error: {error.message}" + (f" ({error.remedy})" if error.remedy else "")

    def _do(self, name: str, given: dict[str, Any]) -> str:
        files = self._sandbox.files
        cwd, timeout = given.get("cwd"), given.get("timeout", 60)
        if name == "read_file":
            return _tools.lines(files.read(given["path"]), given.get("start_line"), given.get("end_line"))
        if name == "write_file":
            written = files.write(given["path"], given["content"])
            return f"wrote {written.size} bytes to {written.path}"
        if name == "execute_code":
            program = _tools.LANGUAGES[given.get("language", "python")]
            return self._run(program, cwd, timeout, given["code"])
        return self._run(["bash", "-c", given["command"]], cwd, timeout, None)

    def _run(self, cmd: list[str], cwd: str | None, timeout: float, stdin: str | None) -> str:
        try:
            result = self._sandbox.commands.run(cmd, cwd=cwd, timeout=timeout, stdin=stdin)
        except CommandTimeout as error:
            assert error.result is not None
            result = error.result
        return _tools.outcome(result)
