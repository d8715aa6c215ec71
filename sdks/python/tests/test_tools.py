"""The tools for agents, and the examples of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.tools import LONGEST, SCHEMAS, Tools

from .conftest import Server

ROOT = Path(__file__).parents[1]


def test_each_tool_does_what_it_says(sandbox: Sandbox) -> None:
    tools = Tools(sandbox)
    assert tools.call("write_file", {"path": "a/b.py", "content": "one\ntwo\nthree\n"}).startswith("wrote 14 bytes")
    assert tools.call("read_file", '{"path": "a/b.py", "start_line": 2, "end_line": 2}') == "two\n"
    assert tools.call("execute_code", {"code": "print(6 * 7)"}) == "42"
    assert tools.call("execute_code", {"code": "echo $((6*7))", "language": "bash"}) == "42"
    assert tools.call("bash", {"command": "cat a/b.py >&2; exit 4"}) == "[stderr]\none\ntwo\nthree\n[exit code 4]"
    assert tools.call("bash", {"command": "true"}) == "[no output]"
    assert "too long" in tools.call("bash", {"command": "sleep 9", "timeout": 1})
    assert "left out" in tools.call("bash", {"command": f"yes | head -c {LONGEST * 2}"})


def test_what_a_model_does_wrong_is_told_to_it(sandbox: Sandbox) -> None:
    tools = Tools(sandbox)
    assert "no-such" in tools.call("read_file", {"path": "no-such"})
    assert tools.call("read_file", "{").startswith("error: the arguments of read_file")
    assert tools.call("bash", {}).startswith("error: the arguments of bash")
    assert tools.call("rm", {}) == "error: there is no tool 'rm'; there are read_file, write_file, execute_code, bash"


def test_schemas_have_the_forms_that_models_take() -> None:
    names = ["read_file", "write_file", "execute_code", "bash"]
    assert [one["function"]["name"] for one in Tools.openai()] == names
    assert [one["input_schema"]["type"] for one in Tools.anthropic()] == ["object"] * 4
    assert all(set(one["parameters"]["required"]) <= set(one["parameters"]["properties"]) for one in SCHEMAS)


EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_readme_run(
    example: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_URL", server.url)
    monkeypatch.setenv("ATOLL_API_KEY", server.key)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.py").write_text("print('hello')\n")
    from atoll import AsyncClient, Client

    monkeypatch.setattr(Client, "_default", None)
    monkeypatch.setattr(AsyncClient, "_default", None)
    exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
