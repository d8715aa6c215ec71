"""Makes what follows from something else: `src/atoll/_sync` from `src/atoll/_async`, and docs/python.md from the
docstrings. `python generate.py` writes both, and `--check` says whether they are current."""

from __future__ import annotations

import re
import sys
from pathlib import Path

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


def outcomes() -> dict[Path, str]:
    """Every file that is made, and what is to be in it."""
    package = HERE / "src" / "atoll"
    made = {}
    for name in SHARED:
        text = waiting((package / "_async" / f"{name}.py").read_text())
        made[package / "_sync" / f"{name}.py"] = f"# Made from _async/{name}.py by generate.py.\n{text}"
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
