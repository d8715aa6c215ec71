"""Generates `src/atoll/_sync` from `src/atoll/_async`, and docs/reference/python.md from the docstrings.
`python generate.py` writes both; with `--check` it fails if one is out of date."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Modules whose sync half is generated; both halves of the others are written by hand.
SHARED = ["client", "commands", "download", "files", "pty", "sandbox", "sandbox_api", "tools"]

#: Replacements that turn async into sync code.
WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bAsync(?=[A-Z])", ""),
    # Methods of httpx.
    (r"\baclose\b", "close"),
]


def to_sync(source: str) -> str:
    """The sync variant of an async module."""
    for pattern, word in WORDS:
        source = re.sub(pattern, word, source)
    return source


#: The classes of the reference, in its order.
CLASSES = {
    "atoll": ["Sandbox", "Client", "CommandHandle", "Pty", "Forward"],
    "atoll._sync.commands": ["Commands", "OutputStream"],
    "atoll._sync.files": ["Files", "Watch"],
    "atoll._sync.pty": ["Ptys"],
    "atoll.tools": ["Tools"],
}
#: Methods without underscore that only other modules of the package use.
INSIDE = {"request", "open", "pause", "broken", "parse_error"}


def text(documented: object) -> str:
    """A docstring as Markdown: its sections become lists. Fails for a public name without docstring."""
    docstring = documented.__doc__
    # The generated docstring of a dataclass is its signature.
    if not docstring or docstring.startswith(f"{getattr(documented, '__name__', '')}("):
        raise ValueError(f"{getattr(documented, '__qualname__', documented)} has no docstring")
    lines = []
    for line in inspect.cleandoc(docstring).splitlines():
        if re.fullmatch(r"(Args|Attributes):", line):
            continue
        argument = re.fullmatch(r"    (\w+): (.*)", line)
        lines.append(f"- `{argument[1]}`: {argument[2]}" if argument else re.sub(r"^      +", "  ", line))
    return "\n".join(lines)


def signature(name: str, function: Callable[..., Any]) -> str:
    """The signature of a method as code."""
    words, star = [], False
    for one in inspect.signature(function).parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not star:
            star = True
            words.append("*")
        default = "" if one.default is one.empty else f" = {one.default!r}"
        words.append(f"{one.name}: {one.annotation}{default}")
    returned = inspect.signature(function).return_annotation
    call = f"{name}({', '.join(words)}) -> {returned}"
    return call if len(call) <= 110 else f"{name}(\n    " + ",\n    ".join(words) + f",\n) -> {returned}"


def described(kind: type) -> list[str]:
    """The reference of a class."""
    return [f"## {kind.__name__}", text(kind), *members(kind)]


def members(kind: type) -> list[str]:
    """The reference of the public methods and properties of a class."""
    parts = []
    for name, member in vars(kind).items():
        inside = name.startswith("_") or (kind.__name__ == "Client" and name in INSIDE)
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if inside or (kind.__name__, name) == ("Forward", "open"):
            continue
        owner = kind.__name__ if isinstance(member, (classmethod, staticmethod)) else kind.__name__.lower()
        if isinstance(function, property) and function.fget:
            returned = inspect.signature(function.fget).return_annotation
            parts += [f"```python\n{owner}.{name}: {returned}\n```", text(function.fget)]
        elif inspect.isfunction(function):
            parts += [f"```python\n{signature(f'{owner}.{name}', function)}\n```", text(function)]
    return parts


def reference() -> str:
    """The reference page of the public API."""
    sys.path.insert(0, str(HERE / "src"))
    from atoll import errors, models

    parts = [
        "# The SDK for Python",
        "Generated from the docstrings by `sdks/python/generate.py`; "
        "[its README](../../sdks/python/README.md) has examples. "
        "Each class has an asyncio variant whose name starts with `Async`, such as `AsyncSandbox` and `AsyncClient`, "
        "with the same methods as coroutines.",
    ]
    for module, names in CLASSES.items():
        for name in names:
            parts += described(getattr(importlib.import_module(module), name))
    parts.append("## Values")
    for name, kind in vars(models).items():
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            fields = ", ".join(f"`{one.name}`" for one in dataclasses.fields(kind))
            parts += [f"### {name}", text(kind), f"Fields: {fields}.", *members(kind)]
    parts += ["## Errors", text(errors.AtollError)]
    rows = ["| class | code | when |", "|---|---|---|"]
    for error in errors.classes():
        rows.append(f"| `{error.__name__}` | `{error.code}` | {' '.join(text(error).split())} |")
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


def tools() -> str:
    """The definitions of the tools as a module, as the wheel has no files outside its package."""
    data = (HERE.parent / "tools.json").read_text()
    lines = ["# Generated from sdks/tools.json by generate.py.", "import json", "from typing import Any", ""]
    return "\n".join([*lines, f'TOOLS: dict[str, Any] = json.loads(r"""\n{data}""")\n'])


def outcomes() -> Iterator[tuple[Path, str]]:
    """The path and content of each generated file. The last is generated from the others."""
    package = HERE / "src" / "atoll"
    for name in SHARED:
        text = to_sync((package / "_async" / f"{name}.py").read_text())
        yield package / "_sync" / f"{name}.py", f"# Generated from _async/{name}.py by generate.py.\n{text}"
    yield package / "_tools_data.py", tools()
    yield HERE.parents[1] / "docs" / "reference" / "python.md", reference()


def main() -> int:
    """Writes the files, or with `--check` reports those that are out of date."""
    old = []
    for path, text in outcomes():
        if path.exists() and path.read_text() == text:
            continue
        old.append(path.name)
        if "--check" not in sys.argv:
            path.write_text(text)
    if old and "--check" in sys.argv:
        print(f"not current: {', '.join(old)}; run {Path(__file__).name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
