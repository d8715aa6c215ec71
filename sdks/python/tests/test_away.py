"""Servers that are silent, unreachable for a while, or behind a proxy: everything comes to an
end, and what can go on does."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from urllib.parse import parse_qs, urlsplit

import pytest

from atoll import AsyncClient, AsyncSandbox, Client, Sandbox, errors

from .conftest import Cutter, Server, wait_for


@contextmanager
def silenced(server: Server, *clients: Client | AsyncClient) -> Iterator[None]:
    """It is there, and takes connections, and does nothing. These clients do not ask it for long; before and after they
    have the time that a busy machine takes."""
    usual = [client.timeout for client in clients]
    for client in clients:
        client.timeout = 1
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)
        for client, timeout in zip(clients, usual, strict=True):
            client.timeout = timeout


@contextmanager
def impatient() -> Iterator[None]:
    """A silence need not last for most of a minute to be one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atoll._deadline.SILENCE", 1)
        yield


def ends(work: Callable[[], object]) -> BaseException | None:
    """The outcome of a call that must not take for ever."""
    results: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            results.append(None)
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert results, "it goes on for ever"
    return results[0]


def test_silent_server_ends_calls(own_server: Server) -> None:
    client = Client(own_server.url, own_server.key, reconnect=1)
    with own_server.client() as patient, Sandbox.create(client=patient, timeout=0) as made:
        sandbox = Sandbox.connect(made.id, client=client)
        handle = sandbox.commands.run("echo begun; sleep 1000", background=True)
        output = iter(handle)
        assert next(output).text == "begun\n"
        watch = sandbox.files.watch(".")
        terminal = sandbox.pty.create(shell="/bin/cat")
        terminal.send("x\n")
        assert terminal.read(60)
        begun = threading.Event()
        running: list[BaseException | None] = []

        def run() -> None:
            long = {"timeout": 600.0, "on_stdout": lambda _: begun.set()}
            running.append(ends(lambda: sandbox.commands.run("echo begun; sleep 1000", **long)))  # type: ignore[call-overload]

        following = threading.Thread(target=run)
        with impatient():
            following.start()
            assert begun.wait(60)
            with silenced(own_server, client):
                for what in (lambda: list(output), handle.wait, lambda: list(watch), lambda: list(terminal)):
                    failure = ends(what)
                    assert isinstance(failure, errors.ConnectionFailed), failure
                    assert "says nothing any more" in str(failure)
                following.join(60)
                assert isinstance(running[0], errors.ConnectionFailed)
        # A client with a longer reconnect time continues.
        sandbox.commands.kill(handle.exec_id)
        assert handle.wait(60).signal == 9


def test_short_silence_is_no_error(own_server: Server) -> None:
    with own_server.client() as client, Sandbox.create(client=client, timeout=0) as sandbox:
        handle = sandbox.commands.run("echo one; until [ -e go ]; do sleep 0.05; done; echo two", background=True)
        output = iter(handle)
        assert next(output).text == "one\n"
        with impatient(), silenced(own_server):
            with pytest.raises(errors.DeadlineExceeded):
                handle.wait(3)
        sandbox.files.write("go", "")
        assert [piece.text for piece in output] == ["two\n"]


def test_silent_server_ends_async_calls(own_server: Server) -> None:
    async def main() -> None:
        client = AsyncClient(own_server.url, own_server.key, reconnect=1)
        async with AsyncClient(own_server.url, own_server.key) as patient:
            async with await AsyncSandbox.create(client=patient, timeout=0) as made:
                sandbox = await AsyncSandbox.connect(made.id, client=client)
                handle = await sandbox.commands.run("sleep 1000", background=True)
                watch = await sandbox.files.watch(".")
                terminal = await sandbox.pty.create(shell="/bin/cat")
                with impatient(), silenced(own_server, client):
                    for waiting in (handle.wait(), watch.next(), terminal.wait()):
                        with pytest.raises(errors.ConnectionFailed, match="says nothing any more"):
                            await asyncio.wait_for(waiting, 60)
                await handle.kill()

    asyncio.run(main())


def test_proxy_without_server_counts_as_restart(own_server: Server) -> None:
    proxy = Cutter(own_server.port, 1 << 40, 1 << 41, seed=1)
    slow = "for n in $(seq 100); do echo $n; sleep 0.01; done; until [ -e go ]; do sleep 0.01; done; echo last"
    with own_server.client(proxy.url) as client, Sandbox.create(client=client, timeout=0) as sandbox:
        handle = sandbox.commands.run(slow, background=True)
        watch = sandbox.files.watch(".")
        terminal = sandbox.pty.create(shell="/bin/sh")
        output = iter(handle)
        seen = next(output).text
        own_server.kill()

        def start() -> None:
            wait_for(lambda: proxy.refusals > 2)
            own_server.start()

        starting = threading.Thread(target=start)
        starting.start()
        # A request, a stream and a terminal get 502 for a while.
        assert sandbox.commands.run("echo again").stdout == "again\n"
        starting.join()
        sandbox.files.write("go", "")
        seen += "".join(piece.text for piece in output)
        assert seen == "".join(f"{n}\n" for n in range(1, 101)) + "last\n"
        event = watch.next(60)
        assert event and event.type == "overflow"
        terminal.send("echo =$((6*7))=; exit\n")
        assert b"=42=" in b"".join(terminal)
    proxy.close()


def test_async_calls_resume_after_server_kill(own_server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(own_server.url, own_server.key) as client:
            async with await AsyncSandbox.create(client=client, timeout=0) as sandbox:
                slow = "for n in $(seq 200); do echo $n; sleep 0.01; done"
                handle = await sandbox.commands.run(slow, background=True)
                waited = asyncio.create_task(sandbox.commands.run("echo x >> once; sleep 1; cat once"))
                watch = await sandbox.files.watch(".")
                seen, kills = "", 0
                async for piece in handle:
                    seen += piece.text
                    if "\n20\n" in seen and kills == 0:
                        kills += 1
                        await asyncio.to_thread(own_server.kill)
                        await asyncio.to_thread(own_server.start)
                assert (seen, kills) == ("".join(f"{n}\n" for n in range(1, 201)), 1)
                assert (await waited).stdout == "x\n"
                types = []
                while "overflow" not in types:
                    event = await watch.next(60)
                    types.append(event.type if event else "none")

    asyncio.run(main())


class Stub(ThreadingHTTPServer):
    """A server that responds with the result of a function of the request."""

    daemon_threads = True

    def __init__(self, answer: Callable[[str], tuple[int, dict[str, str], str]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = answer(self.path)
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def test_only_known_server_is_retried_behind_proxy() -> None:
    answers = [502, 200, 503, 502, 504, 200, 502]
    statuses = iter(answers)
    with Stub(lambda _: (next(statuses, 502), {}, "[]")) as stub:
        client = Client(stub.url, reconnect=30)
        with pytest.raises(errors.UnexpectedAnswer, match="answered 502"):
            Sandbox.list(client=client)
        assert Sandbox.list(client=client) == []
        # The server is unreachable three times, and then responds again.
        assert Sandbox.list(client=client) == []
        assert next(statuses) == 502
        client.reconnect = 0.5
        begin = monotonic()
        with pytest.raises(errors.UnexpectedAnswer, match="answered 502"):
            Sandbox.list(client=client)
        # Not before the limit, and not much after it.
        assert 0.5 <= monotonic() - begin < 30
        stub.shutdown()


SANDBOX = {
    "sandboxID": "",
    "sessionID": "s",
    "templateID": "base",
    "state": "running",
    "cpuCount": 1,
    "memoryMB": 1,
    "diskMB": 1,
    "pids": 1,
    "network": "none",
    "timeout": 0,
    "onTimeout": "destroy",
    "onIdle": "pause",
    "autoResume": True,
    "createdAt": "2026-01-01T00:00:00Z",
    "metadata": {},
}


def test_list_has_all_pages() -> None:
    requested: list[dict[str, list[str]]] = []

    def page(path: str) -> tuple[int, dict[str, str], str]:
        query = parse_qs(urlsplit(path).query)
        requested.append(query)
        first, size = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
        rows = [{**SANDBOX, "sandboxID": f"i{number}"} for number in range(250)][first : first + size]
        more = {"x-next-cursor": str(first + size)} if first + size < 250 else {}
        return 200, more, json.dumps(rows)

    with Stub(page) as stub, Client(stub.url) as client:
        assert [one.id for one in Sandbox.list(client=client)] == [f"i{number}" for number in range(250)]
        assert [query.get("cursor") for query in requested] == [None, ["100"], ["200"]]
        requested.clear()
        assert len(Sandbox.list(client=client, limit=150, state="running")) == 150
        assert [(query["limit"], query["state"]) for query in requested] == [
            (["100"], ["running"]),
            (["50"], ["running"]),
        ]

        async def on_a_loop() -> int:
            return len(await AsyncSandbox.list(client=AsyncClient(stub.url)))

        assert asyncio.run(on_a_loop()) == 250
        stub.shutdown()


COMMAND = {"execID": "", "pid": 1, "cmd": "true", "state": "exited", "startedAt": "2026-01-01T00:00:00Z"}
TERMINAL = {"ptyID": "", "sessionID": "", "sandboxID": "i0", "pid": 1, "cols": 80, "rows": 24}


def test_sandbox_lists_have_all_pages() -> None:
    requested: list[str | None] = []

    def page(path: str) -> tuple[int, dict[str, str], str]:
        parts = urlsplit(path)
        if parts.path == "/sandboxes/i0":
            return 200, {}, json.dumps({**SANDBOX, "sandboxID": "i0"})
        cursor = parse_qs(parts.query).get("cursor", [None])[0]
        requested.append(cursor)
        first = int(cursor or 0)
        row, name = (COMMAND, "execID") if parts.path.endswith("/commands") else (TERMINAL, "ptyID")
        rows = [{**row, name: f"x{number}"} for number in range(250)][first : first + 100]
        return 200, {"x-next-cursor": str(first + 100)} if first < 200 else {}, json.dumps(rows)

    names = [f"x{number}" for number in range(250)]
    with Stub(page) as stub, Client(stub.url) as client:
        sandbox = Sandbox.connect("i0", client=client)
        assert [one.exec_id for one in sandbox.commands.list()] == names
        assert [one.id for one in sandbox.pty.list()] == names
        assert requested == [None, "100", "200"] * 2

        async def on_a_loop() -> list[str]:
            same = await AsyncSandbox.connect("i0", client=AsyncClient(stub.url))
            return [one.exec_id for one in await same.commands.list()]

        assert asyncio.run(on_a_loop()) == names
        stub.shutdown()
