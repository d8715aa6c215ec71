"""The first example of the quick start."""

from e2b import Sandbox

with Sandbox.create(timeout=60) as sandbox:
    assert sandbox.is_running()
    assert sandbox.commands.run("echo hello").stdout == "hello\n"
assert not sandbox.is_running()
