"""Makes what follows from something else: `src/atoll/_sync` from `src/atoll/_async`, and docs/python.md from the
docstrings. `python generate.py` writes both, and `--check` says whether they are current."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Written once for both kinds of programs; the others are written twice, as they differ.
SHARED = ["client", "commands", "door", "files", "pty", "sandbox"]

#: What is another word in a program that waits.
WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bAsync(?=[A-Z])", ""),
]


def waiting(source: str) -> str:
    """A module for programs that wait, from one for programs on an event loop."""
    for pattern, word in WORDS:
        source = re.sub(pattern, word, source)
    return source


#: What the reference tells of, in its order.
CLASSES = {
    "atoll": ["Sandbox", "Client", "CommandHandle", "Pty", "Forward"],
    "atoll._sync.commands": ["Commands", "OutputStream"],
    "atoll._sync.files": ["Files", "Watch"],
    "atoll._sync.pty": ["Ptys"],
    "atoll.tools": ["Tools"],
}
#: What is not for users, though others of the package call it.
INSIDE = {"request", "open", "connect", "pause", "broken"}


def text(docstring: str | None) -> str:
    """A docstring as Markdown: what is under a heading becomes a list."""
    lines = []
    for line in inspect.cleandoc(docstring or "").splitlines():
        if re.fullmatch(r"(Args|Attributes):", line):
            continue
        argument = re.fullmatch(r"    (\w+): (.*)", line)
        lines.append(f"- `{argument[1]}`: {argument[2]}" if argument else re.sub(r"^      +", "  ", line))
    return "\n".join(lines)


def signature(name: str, function: Callable[..., Any]) -> str:
    """A call as one would write it down."""
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
    """A class and what it can do."""
    parts = [f"## {kind.__name__}", text(kind.__doc__)]
    for name, member in vars(kind).items():
        inside = name.startswith("_") or (kind.__name__ == "Client" and name in INSIDE)
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if inside or not inspect.isfunction(function) or (kind.__name__, name) == ("Forward", "open"):
            continue
        owner = kind.__name__ if isinstance(member, (classmethod, staticmethod)) else kind.__name__.lower()
        parts += [f"```python\n{signature(f'{owner}.{name}', function)}\n```", text(function.__doc__)]
    return parts


def reference() -> str:
    """The page about everything that is public."""
    sys.path.insert(0, str(HERE / "src"))
    from atoll import errors, models

    parts = [
        "# The SDK for Python",
        "Made from the docstrings by `sdks/python/generate.py`; [its README](../sdks/python/README.md) has examples. "
        "Everything is there on an event loop too, with the same names after `Async`: `AsyncSandbox`, `AsyncClient`, "
        "and `await` before what waits.",
    ]
    for module, names in CLASSES.items():
        for name in names:
            parts += described(getattr(importlib.import_module(module), name))
    parts.append("## Values")
    for name, kind in vars(models).items():
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            fields = ", ".join(f"`{one.name}`" for one in dataclasses.fields(kind))
            parts += [f"### {name}", text(kind.__doc__), f"Fields: {fields}."]
    parts += ["## Errors", text(errors.AtollError.__doc__)]
    rows = ["| class | code | when |", "|---|---|---|"]
    for error in errors.AtollError.__subclasses__():
        rows.append(
            f"| `{error.__name__}` | `{error.code}` | {' '.join(inspect.cleandoc(error.__doc__ or '').split())} |"
        )
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


def outcomes() -> dict[Path, str]:
    """Every file that is made, and what is to be in it."""
    package = HERE / "src" / "atoll"
    made = {}
    for name in SHARED:
        text = waiting((package / "_async" / f"{name}.py").read_text())
        made[package / "_sync" / f"{name}.py"] = f"# Made from _async/{name}.py by generate.py.\n{text}"
    made[HERE.parents[1] / "docs" / "python.md"] = reference()
    return made


def main() -> int:
    old = []
    for path, text in outcomes().items():
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
