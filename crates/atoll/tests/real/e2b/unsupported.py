"""Features that are not implemented: each returns an error that says so, in both clients."""

import asyncio

from e2b import (
    AsyncSandbox,
    AsyncSecret,
    AsyncTemplate,
    AsyncVolume,
    AuthenticationException,
    Sandbox,
    SandboxException,
    Secret,
    Template,
    Volume,
)

from expect import raises

UNSUPPORTED = "does not support"
TEMPLATE = Template().from_image("debian").run_cmd("true")
ASYNC_TEMPLATE = AsyncTemplate().from_image("debian").run_cmd("true")


def calls(sandbox):
    yield "forks", lambda: sandbox.fork()
    yield "snapshots", lambda: sandbox.create_snapshot()
    yield "snapshots", lambda: sandbox.list_snapshots().next_items()
    yield "snapshots", lambda: Sandbox.list_snapshots().next_items()
    yield "template", lambda: Sandbox.delete_snapshot("x")
    yield "template", lambda: Template.build(TEMPLATE, "x")
    yield "template", lambda: Template.exists("x")
    yield "volumes", lambda: Volume.create("x")
    yield "volumes", lambda: Volume.list()
    yield "secrets", lambda: Secret.create("x", "y")
    yield "secrets", lambda: Secret.list().next_items()
    yield "code interpreter", lambda: Sandbox.create("code-interpreter-v1", timeout=60)


def async_calls(sandbox):
    yield "forks", lambda: sandbox.fork()
    yield "snapshots", lambda: sandbox.create_snapshot()
    yield "snapshots", lambda: sandbox.list_snapshots().next_items()
    yield "template", lambda: AsyncTemplate.build(ASYNC_TEMPLATE, "x")
    yield "template", lambda: AsyncTemplate.exists("x")
    yield "volumes", lambda: AsyncVolume.create("x")
    yield "volumes", lambda: AsyncVolume.list()
    yield "secrets", lambda: AsyncSecret.create("x", "y")
    yield "secrets", lambda: AsyncSecret.list().next_items()
    yield "code interpreter", lambda: AsyncSandbox.create("code-interpreter-v1", timeout=60)


async def asynchronously():
    async with await AsyncSandbox.create(timeout=60) as sandbox:
        for feature, call in async_calls(sandbox):
            with raises(Exception, UNSUPPORTED, feature):
                await call()


with Sandbox.create(timeout=60) as sandbox:
    for feature, call in calls(sandbox):
        with raises(Exception, UNSUPPORTED, feature):
            call()
    with raises(SandboxException, "501"):
        sandbox.create_snapshot()
# A request without a key gets only the authentication error.
with raises(AuthenticationException):
    Volume.list(api_key="e2b_" + "0" * 64)
asyncio.run(asynchronously())
