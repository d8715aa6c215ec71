"""What the tools for agents are, how calls are looked at, and how results are told: all of it but the doing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ._tools_data import TOOLS
from .errors import AtollError
from .models import CommandResult

#: The tools as names, descriptions and JSON schemas of their parameters.
SCHEMAS: list[dict[str, Any]] = TOOLS["schemas"]
#: The longest text that a result has; the middle of a longer one is left out.
LONGEST: int = TOOLS["longest"]
#: What each language is run by; the code is its input.
LANGUAGES: dict[str, list[str]] = TOOLS["languages"]


class Fault(Exception):
    """What is wrong with a call."""


def looked_at(name: str, arguments: object) -> dict[str, Any]:
    """What a call gives, if it is as described. Nothing (`null`) is left out."""
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


def models_own(error: AtollError) -> bool:
    """Whether a failure is the model's own affair. What is wrong with the server or the sandbox is the program's."""
    told = TOOLS["told"]
    known = error.category in told["categories"] or error.code in told["codes"]
    return known and error.code not in told["never"]


def lines(text: str, first: float | None, last: float | None) -> str:
    """Some lines of a text, or all of it."""
    if first is None and last is None:
        return text or "[empty]"
    some = text.split("\n")[int(first or 1) - 1 : None if last is None else int(last)]
    return "\n".join(some) or "[empty]"


def outcome(result: CommandResult) -> str:
    """What a command wrote, and how it ended if that is worth a word."""
    parts = [result.stdout, result.stderr and f"[stderr]\n{result.stderr}"]
    if result.timed_out:
        parts.append("[it was ended because it took too long]")
    elif result.oom_killed:
        parts.append(f"[exit code {result.exit_code}: something was killed for want of memory]")
    elif not result.ok:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"


def short(text: str) -> str:
    """A text that is not too long."""
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    return f"{text[: LONGEST // 2]}\n[{left_out} characters left out]\n{text[-LONGEST // 2 :]}"
