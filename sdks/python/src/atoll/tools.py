"""Four tools for agents that call functions: `read_file`, `write_file`, `execute_code` and `bash`.

    from atoll import Sandbox
    from atoll.tools import Tools

    with Sandbox.create() as sandbox:
        tools = Tools(sandbox)
        answer = model.create(tools=tools.openai(), ...)     # or tools.anthropic()
        result = tools.call("bash", {"command": "ls"})       # what the model asked for

A call never raises for what the model did wrong: the result says so, for the model to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ._sync.sandbox import Sandbox
from .errors import AtollError
from .models import CommandResult

#: The longest text that a result has; the middle of a longer one is left out.
LONGEST = 30_000

_PATH = {"type": "string", "description": "A path in the sandbox; a relative one starts at the home directory."}
_TIMEOUT = {"type": "number", "description": "After how many seconds it is ended; 60 if left out.", "minimum": 1}

#: What each language is run by.
_RUN = {"python": "python3 -", "javascript": "node -", "bash": "bash -s"}


def _schema(name: str, description: str, needed: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    fields = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    return {"name": name, "description": description, "parameters": fields}


#: The tools as names, descriptions and JSON schemas of their parameters.
SCHEMAS: list[dict[str, Any]] = [
    _schema(
        "read_file",
        "Read a text file in the sandbox, all of it or some of its lines.",
        ["path"],
        {
            "path": _PATH,
            "start_line": {"type": "integer", "description": "The first line, counted from 1.", "minimum": 1},
            "end_line": {"type": "integer", "description": "The last line.", "minimum": 1},
        },
    ),
    _schema(
        "write_file",
        "Write a text file in the sandbox. Missing directories are made, and a file that is there is replaced.",
        ["path", "content"],
        {"path": _PATH, "content": {"type": "string"}},
    ),
    _schema(
        "execute_code",
        "Run a program in the sandbox and get what it writes. Each call is a new process; files stay.",
        ["code"],
        {
            "code": {"type": "string"},
            "language": {"type": "string", "enum": list(_RUN), "description": "python if left out."},
            "timeout": _TIMEOUT,
        },
    ),
    _schema(
        "bash",
        "Run a command line in the sandbox and get what it writes. Each call is a new shell; files stay.",
        ["command"],
        {"command": {"type": "string"}, "timeout": _TIMEOUT},
    ),
]


class Tools:
    """The tools, in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @staticmethod
    def openai() -> list[dict[str, Any]]:
        """The schemas as OpenAI's chat completions, and what is like them, take them."""
        return [{"type": "function", "function": schema} for schema in SCHEMAS]

    @staticmethod
    def anthropic() -> list[dict[str, Any]]:
        """The schemas as Anthropic's messages take them."""
        return [{**{name: schema[name] for name in ("name", "description")}, "input_schema": schema["parameters"]}
                for schema in SCHEMAS]  # fmt: skip

    def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Does what a model asked for, and tells it the result.

        Args:
            name: Which tool.
            arguments: Its parameters, as JSON or read from it.
        """
        try:
            given = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
            return _short(self._do(name, given))
        except AtollError as error:
            return f"error: {error}"
        except (KeyError, TypeError, ValueError) as error:
            return f"error: the arguments of {name} are not as described: {error}"

    def _do(self, name: str, given: dict[str, Any]) -> str:
        commands, files = self._sandbox.commands, self._sandbox.files
        timeout = float(given.get("timeout") or 60)
        match name:
            case "read_file":
                lines = files.read(given["path"]).splitlines(keepends=True)
                return "".join(lines[int(given.get("start_line") or 1) - 1 : given.get("end_line")])
            case "write_file":
                written = files.write(given["path"], str(given["content"]))
                return f"wrote {written.size} bytes to {written.path}"
            case "execute_code":
                line = _RUN[given.get("language") or "python"]
                return _told(commands.run(line, stdin=str(given["code"]), timeout=timeout))
            case "bash":
                return _told(commands.run(["bash", "-c", str(given["command"])], timeout=timeout))
        known = ", ".join(schema["name"] for schema in SCHEMAS)
        return f"error: there is no tool {name!r}; there are {known}"


def _told(result: CommandResult) -> str:
    """What a command wrote, and how it ended if that is worth a word."""
    parts = [result.stdout, result.stderr and f"[stderr]\n{result.stderr}"]
    if result.timed_out:
        parts.append("[it was ended because it took too long]")
    elif not result.ok:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"


def _short(text: str) -> str:
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    return f"{text[: LONGEST // 2]}\n[{left_out} characters left out]\n{text[-LONGEST // 2 :]}"
