"""Fixtures: a server on a free port with its own data directory, and proxies that break connections."""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
import threading
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

import pytest

from atoll import Client, Sandbox, errors

T = TypeVar("T")


def lasting_port() -> int:
    """A free port outside the ephemeral range: it is still free when a server is restarted."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Server:
    """`atoll serve`, which can be killed and restarted with the same address and data directory."""

    def __init__(self, data: Path) -> None:
        data.mkdir(mode=0o700)
        self.data, self.port = data, lasting_port()
        self.start()

    def start(self) -> None:
        words = [os.environ["ATOLL_BIN"], "serve", "--metrics-listen", "off", "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(
            [*words, "--data-dir", str(self.data)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(self.data.parent / "log").open("ab"),
            text=True,
        )
        assert self.process.stdout
        for line in self.process.stdout:
            if "http://127.0.0.1:" in line:
                self.port = int(line.rsplit("http://127.0.0.1:")[1].split("/")[0].split()[0])
                return
        raise AssertionError((self.data.parent / "log").read_text())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        return (self.data / "admin.key").read_text().strip()

    def client(self, url: str | None = None) -> Client:
        return Client(url or self.url, self.key)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with self.client() as client:
            for info in Sandbox.list(client=client):
                Sandbox.connect(info.id, client=client).kill()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0
        environment = os.environ | {"ATOLL_DATA_DIR": str(self.data)}

        def collected() -> bool:
            subprocess.run([os.environ["ATOLL_BIN"], "gc", "--all"], env=environment, check=True, capture_output=True)
            return not any(str(self.data) in text(place) for place in Path("/run/atoll/instances").iterdir())

        # Keepers outlive the server; they end when nothing uses them any more.
        wait_for(collected)


def text(path: Path) -> str:
    """Contents of a file that may be removed concurrently."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


#: The response of a proxy that cannot reach its server.
AWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\nconnection: close\r\n\r\n502"


class Cutter:
    """A proxy that ends each connection after a number of bytes that chance says, the same each time: each size is as
    likely as its double. While there is no server it answers 502."""

    def __init__(self, target: int, least: int, most: int, seed: int) -> None:
        self._target, self._bounds, self._random = target, (least, most), random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = self.refusals = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                threading.Thread(target=self._refuse, args=(client,), daemon=True).start()
                continue
            least, most = self._bounds
            left = [int(least * (most / least) ** self._random.random())]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pour, args=(source, sink, left), daemon=True).start()

    def _pour(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                data = data[: max(0, left[0])]
                left[0] -= len(data)
                sink.sendall(data)
                if left[0] <= 0:
                    self.cuts += 1
                    break
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _refuse(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            # All that comes is read: a connection with something unread would be reset.
            client.settimeout(30)
            client.recv(1 << 20)
            self.refusals += 1
            client.sendall(AWAY)
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 20):
                pass

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Loser(Cutter):
    """A proxy that drops the response to the first request with these words in its head, once it was processed."""

    def __init__(self, target: int, words: bytes) -> None:
        super().__init__(target, 1 << 40, 1 << 41, seed=1)
        self._words: bytes | None = words
        self._lost: set[tuple[socket.socket, socket.socket]] = set()

    def _pour(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if (source, sink) in self._lost:
                    break
                if self._words is not None and self._words in data:
                    self._words = None
                    self._lost.add((sink, source))
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    @property
    def lost(self) -> int:
        """Number of dropped responses."""
        return len(self._lost)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server") / "data")
    yield server
    server.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may kill."""
    server = Server(tmp_path / "data")
    yield server
    server.close()


@pytest.fixture(scope="session", params=["good", "bad"])
def line(request: pytest.FixtureRequest) -> str:
    """Kind of connection: each test also runs with connections that break."""
    return str(request.param)


@pytest.fixture(scope="session")
def client(server: Server, line: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    if line == "good":
        with server.client() as client:
            yield client
        return
    # From a part of a head to some megabytes.
    cutter = Cutter(server.port, 256, 8 << 20, seed=7)
    with server.client(cutter.url) as client:
        yield client
    cutter.close()
    # With only a few tests, no connection may have broken.
    assert cutter.cuts > 20 or request.session.testscollected < 50


def insist(work: Callable[[], T]) -> T:
    """Retries calls that the SDK must not retry, if the connection breaks."""
    for _ in range(50):
        with suppress(errors.ConnectionFailed, urllib.error.URLError, ConnectionError, http.client.HTTPException):
            return work()
    return work()


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    until = monotonic() + 60
    while not condition():
        assert monotonic() < until, "the condition did not hold in time"
        sleep(0.01)


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox.create(client=client, timeout=600) as sandbox:
        yield sandbox


@pytest.fixture
def cutter(server: Server) -> Iterator[Cutter]:
    """Some requests succeed; a client that resumes at its position gets all data."""
    cutter = Cutter(server.port, 300, 9000, seed=6)
    yield cutter
    cutter.close()
