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

    async def call(self, name, /, progress=None, **given):
        return await self.client.call_tool(name, given, progress_callback=progress)

    def begin(self, name, /, **given):
        """A call that goes on, and when something was heard of it."""
        begun = asyncio.Event()

        async def hear(*_):
            begun.set()

        return asyncio.create_task(self.call(name, hear, **given)), begun

    async def text(self, name, /, **given):
        """The text of a call that must succeed, which is all of its answer."""
        return only_text(await self.call(name, **given))

    async def fault(self, name, /, **given):
        """What a call that must fail says: the code, and all of the text."""
        result = await self.call(name, **given)
        assert result.is_error, result
        text, data = result.content[0].text, result.structured_content
        assert text.startswith(f"{data['code']}: {data['error']}"), text
        assert ("remedy" in data) == ("\nhint: " in text), text
        assert ("request_id" in data) == ("\nrequest: req_" in text), text
        return data["code"], text


def only_text(result):
    """The text of a result that has nothing else: no host gives it to a model twice, or not at all."""
    assert not result.is_error and result.structured_content is None, result
    [content] = result.content
    return content.text


@asynccontextmanager
async def host(*flags, mode="auto", **changed):
    """A session with these flags, and these variables changed; None takes one away."""
    env = {name: os.environ[name] for name in VARIABLES} | {"ATOLL_URL": os.environ["LINE"]} | changed
    env = {name: value for name, value in env.items() if value is not None}
    before = children()
    parameters = StdioServerParameters(command=BINARY, args=["mcp", *flags], env=env)
    async with Client(parameters, mode=mode) as client:
        [pid] = children() - before
        yield Session(client, pid)


def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(map(int, file.read().split()))


def ask(method, path, body=None):
    """The API itself, past the session."""
    request = urllib.request.Request(
        os.environ["ATOLL_URL"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": os.environ["ATOLL_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or b"null")


def ids():
    return {sandbox["sandboxID"] for sandbox in ask("GET", "/sandboxes")}


def wait_for(what, holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.05)
