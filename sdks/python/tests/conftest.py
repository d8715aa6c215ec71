"""A server of the tests' own, on a free port, with a data directory that goes with it; and a proxy that cuts."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from atoll import Client, Sandbox


class Server:
    """`atoll serve`, which can be killed and started again at the same place."""

    def __init__(self, data: Path) -> None:
        data.mkdir(mode=0o700)
        self.data, self.port = data, 0
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
        assert self.process.wait(30) == 0
        environment = os.environ | {"ATOLL_DATA_DIR": str(self.data)}
        # What lasts ends when nothing of it is used any more.
        for _ in range(100):
            subprocess.run([os.environ["ATOLL_BIN"], "gc", "--all"], env=environment, check=True, capture_output=True)
            if not any(str(self.data) in place.read_text() for place in Path("/run/atoll/instances").iterdir()):
                return
        raise AssertionError("the instance is there still")


class Cutter:
    """A proxy that ends each connection after a number of bytes that chance says, the same each time."""

    def __init__(self, target: int, least: int, most: int, seed: int) -> None:
        self._target, self._bounds, self._random = target, (least, most), random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            left = [self._random.randint(*self._bounds)]
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

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server") / "data")
    yield server
    server.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One that may be killed."""
    server = Server(tmp_path / "data")
    yield server
    server.close()


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox.create(client=client, timeout=600) as sandbox:
        yield sandbox


@pytest.fixture
def cutter(server: Server) -> Iterator[Cutter]:
    """Requests get through now and then; whoever goes on where it was gets everything."""
    cutter = Cutter(server.port, 300, 9000, seed=6)
    yield cutter
    cutter.close()
