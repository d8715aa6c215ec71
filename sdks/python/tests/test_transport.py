"""The HTTP client below the SDK: proxies, custom clients, and deadlines of streams."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from time import monotonic

import httpx
import pytest

from atoll import AsyncClient, AsyncSandbox, Client, Sandbox, errors
from atoll._transport import Call

from .conftest import Server
from .test_away import SANDBOX

#: An address for documentation: only the proxy leads to it. Servers refuse names that they do not know.
ADDRESS = "192.0.2.1"


class Proxy:
    """A forward proxy: `CONNECT` for tunnels, and absolute URLs for everything else. All of it goes to one server."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._target))
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1 << 16)
        if head.startswith(b"CONNECT "):
            self.requests.append(head.split(b"\r\n")[0].decode())
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            head = b""
        for arguments in ((client, server, head), (server, client, b"")):
            threading.Thread(target=self._pour, args=arguments, daemon=True).start()

    def _pour(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        absolute = f" http://{ADDRESS}/".encode()
        with suppress(OSError):
            while data or (data := source.recv(1 << 16)):
                if absolute in data:
                    self.requests.append(data.split(b"\r\n")[0].decode())
                sink.sendall(data.replace(absolute, b" /"))
                data = b""
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    proxy = Proxy(server.port)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    return proxy


def test_requests_streams_and_websockets_use_the_proxy(server: Server, proxy: Proxy) -> None:
    with Client(f"http://{ADDRESS}", server.key) as client, Sandbox.create(client=client) as sandbox:
        assert sandbox.commands.run("echo one", on_stdout=len).stdout == "one\n"
        assert f"POST http://{ADDRESS}/sandboxes HTTP/1.1" in proxy.requests
        with sandbox.pty.create(shell="/bin/cat") as terminal:
            terminal.send("typed\n")
            seen = b""
            while b"typed" not in seen:
                seen += terminal.read(60)
        assert f"CONNECT {ADDRESS}:80 HTTP/1.1" in proxy.requests
    before = len(proxy.requests)

    async def on_a_loop() -> None:
        async with AsyncClient(f"http://{ADDRESS}", server.key) as client:
            await AsyncSandbox.list(client=client)

    asyncio.run(on_a_loop())
    assert len(proxy.requests) == before + 1


def test_no_proxy_and_loopback_bypass_the_proxy(server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(server.url, server.key) as client, Sandbox.create(client=client) as sandbox:
        sandbox.pty.create(shell="/bin/cat").kill()
    monkeypatch.setenv("NO_PROXY", "name.invalid")
    with pytest.raises(errors.ConnectionFailed, match="no server answers"):
        Sandbox.list(client=Client("http://name.invalid"))
    assert proxy.requests == []


def test_proxy_error_names_the_proxy(server: Server, proxy: Proxy) -> None:
    with Client(f"https://{ADDRESS}", server.key) as client:
        proxy.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HTTPS_PROXY", proxy.url)
            with pytest.raises(errors.ConnectionFailed, match="no server answers"):
                Sandbox.list(client=client)


def test_custom_http_client_is_not_closed(server: Server) -> None:
    seen: list[str] = []
    mine = httpx.Client(event_hooks={"request": [lambda request: seen.append(request.url.path)]})
    with Client(server.url, server.key, http_client=mine) as client, Sandbox.create(client=client) as sandbox:
        sandbox.commands.run("true", on_stdout=len)
        sandbox.files.write("file", b"x" * 300_000)
        assert sandbox.files.read("file", format="bytes") == b"x" * 300_000
    assert seen[0] == "/sandboxes" and f"/sandboxes/{sandbox.id}/files" in seen
    assert not mine.is_closed
    mine.close()

    async def on_a_loop() -> None:
        async def hook(request: httpx.Request) -> None:
            seen.append(request.url.path)

        async with httpx.AsyncClient(event_hooks={"request": [hook]}) as mine:
            async with AsyncClient(server.url, server.key, http_client=mine) as client:
                seen.clear()
                await AsyncSandbox.list(client=client)
            assert seen == ["/sandboxes"] and not mine.is_closed

    asyncio.run(on_a_loop())


class Stalling(httpx.SyncByteStream):
    """A body whose second piece comes when it is allowed to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.closed = threading.Event()

    def __iter__(self):  # type: ignore[no-untyped-def]
        yield b"one"
        assert self.go.wait(60)
        yield b"two"

    def close(self) -> None:
        self.closed.set()


def test_timed_out_read_continues() -> None:
    body = Stalling()
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, stream=body)

    # A transport without sockets.
    client = Client("http://host/prefix", "key", http_client=httpx.Client(transport=httpx.MockTransport(answer)))
    stream = client.open(Call("GET", "/x", "reading", {"path": "a b/ü", "none": None}), monotonic() + 60)
    assert str(requests[0].url) == "http://host/prefix/x?path=a%20b/%C3%BC"
    assert requests[0].headers["x-api-key"] == "key" and requests[0].headers["accept-encoding"] == "identity"
    assert stream.read(monotonic() + 60) == b"one"
    for _ in range(2):
        with pytest.raises(TimeoutError):
            stream.read(monotonic() + 0.05)
    body.go.set()
    assert [stream.read(monotonic() + 60) for _ in range(2)] == [b"two", b""]
    stream.close()
    assert body.closed.wait(60)


def test_timed_out_async_read_continues() -> None:
    async def main() -> None:
        go = asyncio.Event()

        class Body(httpx.AsyncByteStream):
            async def __aiter__(self):  # type: ignore[no-untyped-def]
                yield b"one"
                await go.wait()
                yield b"two"

        transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Body()))
        client = AsyncClient("http://host", http_client=httpx.AsyncClient(transport=transport))
        stream = await client.open(Call("GET", "/x", "reading"), monotonic() + 60)
        assert await stream.read(monotonic() + 60) == b"one"
        with pytest.raises(TimeoutError):
            await stream.read(monotonic() + 0.05)
        go.set()
        assert [await stream.read(monotonic() + 60) for _ in range(2)] == [b"two", b""]

    asyncio.run(main())


class Sink(httpx.BaseTransport):
    """Takes a body, piece by piece."""

    def __init__(self) -> None:
        self.headers = httpx.Headers()
        self.pieces: list[int] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        self.headers, self.pieces = request.headers, [len(piece) for piece in request.stream]
        return httpx.Response(200)


def test_large_bytes_are_sent_in_pieces() -> None:
    # httpcore copies all that is left of a piece each time the system takes some of it.
    sink = Sink()
    with httpx.Client(transport=sink) as mine:
        Client("http://host", http_client=mine).request(Call("PUT", "/x", "writing", body=bytes(700_000)))
    assert sum(sink.pieces) == 700_000 and max(sink.pieces) <= 256 << 10
    assert sink.headers["content-length"] == "700000" and "transfer-encoding" not in sink.headers


def test_one_client_serves_several_event_loops(server: Server) -> None:
    client = AsyncClient(server.url, server.key)
    for _ in range(2):
        assert asyncio.run(AsyncSandbox.list(client=client)) is not None


def test_import_is_lazy() -> None:
    program = "import sys, atoll; print([name for name in ('asyncio', 'websockets', 'tarfile') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_transport_errors_are_converted() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/sandboxes":
            return httpx.Response(200, json=[{**SANDBOX, "sandboxID": "i0"}])
        if "commands" in request.url.path:
            raise httpx.ReadTimeout("too slow")
        raise httpx.RemoteProtocolError("no HTTP")

    with httpx.Client(transport=httpx.MockTransport(fail)) as mine:
        client = Client("http://host", http_client=mine, reconnect=0.1)
        assert [one.id for one in Sandbox.list(client=client)] == ["i0"]
        with pytest.raises(errors.ConnectionFailed, match="breaks again and again: no HTTP"):
            Sandbox.connect("i0", client=client)
        with pytest.raises(errors.DeadlineExceeded, match="listing commands"):
            Sandbox(client, Sandbox.list(client=client)[0], ends=False).commands.list()
