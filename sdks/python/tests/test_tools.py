"""Function-calling tools, and the examples of the README."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from atoll import Client, Sandbox, errors
from atoll.tools import SCHEMAS, AsyncTools, Tools

from .conftest import Server

ROOT = Path(__file__).parents[1]


CASES = json.loads((ROOT.parent / "tools.cases.json").read_text())


def test_tool_calls_return_results_and_mistakes(sandbox: Sandbox) -> None:
    tools = Tools(sandbox)
    for case in CASES:
        output = tools.call(case["name"], case["arguments"])
        assert output == case.get("result", output), case
        assert case.get("part", "") in output, (case, output)
        assert len(output) == case.get("length", len(output)), case


def test_server_errors_are_raised_from_tool_calls(client: Client) -> None:
    with Sandbox.create(client=client) as sandbox:
        tools = Tools(sandbox)
        sandbox.stop()
        with pytest.raises(errors.SandboxStopped):
            tools.call("bash", {"command": "true"})
    with pytest.raises(errors.SandboxNotFound):
        tools.call("read_file", {"path": "x"})


def test_tools_are_the_same_in_every_sdk() -> None:
    assert json.loads((ROOT.parent / "tools.json").read_text())["schemas"] == SCHEMAS
    assert [one["function"] for one in Tools.openai()] == SCHEMAS
    assert Tools.anthropic() == AsyncTools.anthropic()
    # The caller may change the schemas without an effect on other callers.
    Tools.openai()[0]["function"]["parameters"]["required"].clear()
    assert SCHEMAS[0]["parameters"]["required"] == ["path"]


def test_schemas_have_formats_of_model_apis() -> None:
    names = ["read_file", "write_file", "execute_code", "bash"]
    assert [one["function"]["name"] for one in Tools.openai()] == names
    assert [one["input_schema"]["type"] for one in Tools.anthropic()] == ["object"] * 4
    assert all(set(one["parameters"]["required"]) <= set(one["parameters"]["properties"]) for one in SCHEMAS)


EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.mark.parametrize("example", EXAMPLES)
def test_readme_examples_run(example: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_URL", server.url)
    monkeypatch.setenv("ATOLL_API_KEY", server.key)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.py").write_text("print('hello')\n")
    from atoll import AsyncClient, Client

    monkeypatch.setattr(Client, "_default", None)
    monkeypatch.setattr(AsyncClient, "_default", None)
    exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
