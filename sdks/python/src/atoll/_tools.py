"""Definitions of the function-calling tools, validation of arguments and formatting of results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ._tools_data import TOOLS
from .errors import AtollError
from .models import CommandResult

#: The tools: names, descriptions and JSON schemas of their parameters.
SCHEMAS: list[dict[str, Any]] = TOOLS["schemas"]
#: Maximum length of a result in characters; the middle of a longer one is omitted.
LONGEST: int = TOOLS["longest"]
#: The interpreter of each language, which reads the code from standard input.
LANGUAGES: dict[str, list[str]] = TOOLS["languages"]


class Fault(Exception):
    """A mistake in a tool call."""


def validate_arguments(name: str, arguments: object) -> dict[str, Any]:
    """Returns the arguments of a call if they match its schema, without those that are `null`."""
    schema = next((schema for schema in SCHEMAS if schema["name"] == name), None)
    if schema is None:
        raise Fault(f"there is no tool {name}; there are {', '.join(schema['name'] for schema in SCHEMAS)}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_number)
        except ValueError:
            raise Fault(f"the arguments of {name} are not JSON") from None
    if not isinstance(arguments, Mapping):
        raise Fault(f"the arguments of {name} are not an object")
    given = {str(key): value for key, value in arguments.items() if value is not None}
    properties = schema["parameters"]["properties"]
    for key in schema["parameters"]["required"]:
        if key not in given:
            raise Fault(f"{key} is missing")
    for key, value in given.items():
        if key not in properties:
            raise Fault(f"{key} is not known; there are {', '.join(properties)}")
        _fits(key, value, properties[key])
    return given


def _no_number(text: str) -> None:
    raise ValueError(text)


def _fits(key: str, value: object, wanted: Mapping[str, Any]) -> None:
    kind = wanted["type"]
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    whole = number is not None and number == number // 1
    if not {"string": isinstance(value, str), "integer": whole, "number": number is not None}[kind]:
        raise Fault(f"{key} must be {'an' if kind == 'integer' else 'a'} {kind}")
    if number is not None and number < wanted.get("minimum", number):
        raise Fault(f"{key} must be at least {wanted['minimum']}")
    if "enum" in wanted and value not in wanted["enum"]:
        raise Fault(f"{key} must be one of {', '.join(wanted['enum'])}")


def is_model_error(error: AtollError) -> bool:
    """Whether an error is a mistake of the model, rather than one of the server or the sandbox."""
    returned = TOOLS["returnedErrors"]
    known = error.category in returned["categories"] or error.code in returned["codes"]
    return known and error.code not in returned["never"]


def lines(text: str, first: float | None, last: float | None) -> str:
    """Selects lines of a text."""
    if first is None and last is None:
        return text or "[empty]"
    some = text.split("\n")[int(first or 1) - 1 : None if last is None else int(last)]
    return "\n".join(some) or "[empty]"


def outcome(result: CommandResult) -> str:
    """Formats a command's output, with its exit status unless the command succeeded."""
    parts = [result.stdout, result.stderr and f"[stderr]\n{result.stderr}"]
    if result.timed_out:
        parts.append("[it was ended because it took too long]")
    elif result.oom_killed:
        parts.append(f"[exit code {result.exit_code}: something was killed for want of memory]")
    elif not result.ok:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"


def short(text: str) -> str:
    """Shortens a text to `LONGEST` characters."""
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    return f"{text[: LONGEST // 2]}\n[{left_out} characters left out]\n{text[-LONGEST // 2 :]}"
