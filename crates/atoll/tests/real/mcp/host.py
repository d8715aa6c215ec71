"""An agent host: a session of `atoll mcp`, and the calls to it."""

import asyncio
import json
import os
import time
import urllib.request
from contextlib import asynccontextmanager

from mcp import Client, StdioServerParameters

BINARY = os.environ["ATOLL_BIN"]
VARIABLES = ("ATOLL_URL", "ATOLL_API_KEY", "XDG_CONFIG_HOME")


class Session:
    def __init__(self, client, pid):
        self.client = client
        self.pid = pid

    async def call(self, name, /, progress=None, **arguments):
        return await self.client.call_tool(name, arguments, progress_callback=progress)

    def begin(self, name, /, **arguments):
        """A running call, and an event that is set by its first progress message."""
        started = asyncio.Event()

        async def on_progress(*_):
            started.set()

        return asyncio.create_task(self.call(name, on_progress, **arguments)), started

    async def text(self, name, /, **arguments):
        """The text of a call that must succeed and have no other content."""
        return only_text(await self.call(name, **arguments))

    async def fault(self, name, /, **arguments):
        """The error code and the text of a call that must fail."""
        result = await self.call(name, **arguments)
        assert result.is_error, result
        text, data = result.content[0].text, result.structured_content
        assert text.startswith(f"{data['code']}: {data['error']}"), text
        assert ("remedy" in data) == ("\nhint: " in text), text
        assert ("request_id" in data) == ("\nrequest: req_" in text), text
        return data["code"], text


def only_text(result):
    """The text of a result without other content. With both text and structured content, some hosts pass both to the
    model, and some only one."""
    assert not result.is_error and result.structured_content is None, result
    [content] = result.content
    return content.text


@asynccontextmanager
async def host(*flags, mode="auto", **variables):
    """A session with these flags and environment variables; None unsets a variable."""
    env = {name: os.environ[name] for name in VARIABLES} | {"ATOLL_URL": os.environ["SESSION_URL"]} | variables
    env = {name: value for name, value in env.items() if value is not None}
    before = children()
    parameters = StdioServerParameters(command=BINARY, args=["mcp", *flags], env=env)
    async with Client(parameters, mode=mode) as client:
        [pid] = children() - before
        yield Session(client, pid)


def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(map(int, file.read().split()))


def api(method, path, body=None):
    """Calls the API directly, not through the session."""
    request = urllib.request.Request(
        os.environ["ATOLL_URL"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": os.environ["ATOLL_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.loads(response.read() or b"null")


def ids():
    return {sandbox["sandboxID"] for sandbox in api("GET", "/sandboxes")}


def wait_for(description, condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"{description} did not happen"
        time.sleep(0.05)
