"""The wheel, its types and the version."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from atoll import CommandResult

ROOT = Path(__file__).parents[1]

PROGRAM = """
from atoll import AsyncSandbox, Client, Sandbox, __version__
from atoll.tools import SCHEMAS, AsyncTools, Tools


def one(sandbox: Sandbox) -> str:
    return sandbox.commands.run("true").stdout


async def other(sandbox: AsyncSandbox) -> str:
    return (await sandbox.commands.run("true")).stdout


print(__version__, Client("http://host").url, len(SCHEMAS), AsyncTools.__name__, Tools.__name__)
"""


def run(*words: str | Path, **more: object) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=100, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def test_wheel_is_complete_and_installable(tmp_path: Path) -> None:
    # From a copy: building leaves nothing beside the sources.
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "src"):
        subprocess.run(["cp", "-r", ROOT / name, source], check=True)
    pip = ("-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", tmp_path, source)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    ours = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert ours | {"atoll/py.typed"} == {name for name in names if name.startswith("atoll/")}
    run(*pip, "install", "--no-index", "--no-deps", "--target", tmp_path / "site", wheel)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    output = run("-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {run_path(program)}")
    assert output == "0.1.0 http://host 4 AsyncTools Tools\n"
    # Users of the package get its types.
    cache = f"--cache-dir={tmp_path / 'mypy'}"
    run("-m", "mypy", "--strict", cache, "--config-file=", program, env=environment, cwd=tmp_path)


def test_public_names_have_docstrings() -> None:
    sys.path.insert(0, str(ROOT))
    import generate

    class Silent:
        """A class with a method without docstring."""

        def silent(self) -> None:
            pass

    with pytest.raises(ValueError, match=r"Silent\.silent has no docstring"):
        generate.described(Silent)
    output = "".join(generate.described(CommandResult))
    assert "commandresult.ok: bool" in output and "commandresult.check()" in output


def run_path(program: Path) -> str:
    return f"import runpy; runpy.run_path({str(program)!r})"
