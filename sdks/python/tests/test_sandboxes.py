"""Lifecycles of sandboxes, and error messages."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import socket
import threading
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll import AsyncClient, AsyncSandbox, Client, Pty, Sandbox, errors

from .conftest import Server, insist, wait_for

ROOT = Path(__file__).parents[3]


def test_with_block_deletes_only_created_sandbox(client: Client, line: str) -> None:
    with Sandbox.create(client=client, timeout=120, metadata={"a": "b"}, env={"E": "f"}, memory_mb=256) as sandbox:
        assert sandbox.commands.run("echo $E").stdout == "f\n"
        assert (sandbox.info.metadata, sandbox.info.memory_mb, sandbox.info.state) == ({"a": "b"}, 256, "running")
        with Sandbox.connect(sandbox.id, client=client) as found:
            assert found.id == sandbox.id
        assert sandbox.id in [info.id for info in Sandbox.list(client=client)]
        assert len(Sandbox.list(client=client, limit=1, state="running")) == 1
        assert sandbox.update(alias="named", pids=100).alias == "named"
        assert Sandbox.connect("named", client=client).id == sandbox.id
        assert sandbox.pause().state == "paused"
        assert sandbox.resume(60).state == "running"
        assert sandbox.stop().state == "stopped"
        with pytest.raises(errors.SandboxStopped) as raised:
            sandbox.commands.run("true")
        assert raised.value.remedy == "call start() of the sandbox first"
        assert sandbox.start().state == "running"
        assert sandbox.set_timeout(0).end_at is None
        assert sandbox.metrics()[-1].pids > 0
        assert "sandbox.created" in [event.type for event in sandbox.events()]
        assert "●" in sandbox._repr_html_() and sandbox.id in repr(sandbox)
    with pytest.raises(errors.SandboxNotFound):
        sandbox.commands.run("true")
    # Over a bad line, the first attempt of this call may have deleted it.
    assert not sandbox.kill() or line == "bad"


def typed(terminal: Pty, keys: str, wanted: bytes) -> bytes:
    """Writes input until its output arrives: input is lost if the connection breaks."""
    seen = b""
    while wanted not in seen:
        terminal.send(keys)
        with suppress(errors.DeadlineExceeded):
            while wanted not in seen:
                seen += terminal.read(1)
    return seen


def test_terminals_take_input_and_reconnect(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(cols=100, rows=30, env={"PS1": "> "})
    typed(terminal, "stty size; A=kept\n", b"30 100")
    terminal.resize(90, 20)
    terminal.close()
    assert [(one.cols, one.rows) for one in sandbox.pty.list()] == [(90, 20)]
    other = sandbox.pty.connect(terminal.id)
    # The first output is the current screen.
    assert b"30 100" in other.read(60)
    typed(other, "echo =$A=\n", b"=kept=")
    other.kill()
    while other.read(60):
        pass
    with pytest.raises(errors.TerminalNotFound):
        sandbox.pty.connect(terminal.id)
    with pytest.raises(errors.DeadlineExceeded, match="to write"), sandbox.pty.create(shell="/bin/cat") as silent:
        while silent.read(0.3):
            pass
    wait_for(lambda: sandbox.pty.list() == [])


def test_with_block_kills_only_created_terminal(sandbox: Sandbox) -> None:
    with sandbox.pty.create(shell="/bin/cat") as terminal:
        with sandbox.pty.connect(terminal.id) as joined:
            joined.send("")
        assert [one.id for one in sandbox.pty.list()] == [terminal.id]
    assert sandbox.pty.list() == []
    with Sandbox.create(client=sandbox.client) as other, other.pty.create(shell="/bin/cat"):
        other.kill()


def test_port_is_forwarded(sandbox: Sandbox) -> None:
    sandbox.files.write("served/page", "text" * 100_000)
    server = sandbox.commands.run("python3 -m http.server -b 127.0.0.1 -d served 8000", background=True)
    wait_for(lambda: 8000 in [port.port for port in sandbox.ports()])
    with sandbox.forward(8000) as forward:

        def read() -> int:
            with urllib.request.urlopen(f"{forward.url}/page", timeout=60) as answer:
                return len(answer.read())

        assert [insist(read) for _ in range(3)] == [400_000] * 3
    server.kill()
    with sandbox.forward(9999) as forward:
        with pytest.raises(OSError):
            urllib.request.urlopen(forward.url, timeout=60)
        assert "9999" in str(forward.last_error)


#: Reads no more until it has written what it read.
ECHO = """
import socket
connection, _ = socket.create_server(("127.0.0.1", 7000)).accept()
while data := connection.recv(65536):
    connection.sendall(data)
"""


def test_tunnel_carries_both_directions_at_once(server: Server) -> None:
    # More than all buffers between the two ends hold.
    data = bytes(range(256)) * (64 << 10)
    with server.client() as client, Sandbox.create(client=client) as sandbox:
        sandbox.commands.run(["python3", "-c", ECHO], background=True)
        wait_for(lambda: 7000 in [port.port for port in sandbox.ports()])
        with sandbox.forward(7000) as forward, socket.create_connection((forward.host, forward.port), 60) as end:

            def send() -> None:
                end.sendall(data)
                end.shutdown(socket.SHUT_WR)

            sending = threading.Thread(target=send)
            sending.start()
            with end.makefile("rb") as received:
                assert received.read() == data
            sending.join()


def test_lists_are_filtered_and_counted(client: Client) -> None:
    entries = {"team": "a b&c", "x": "é"}
    conditions: list[tuple[dict[str, Any], int]] = [
        ({"metadata": entries}, 1),
        ({"metadata": {"team": "a"}}, 0),
        ({"search": "FILTERED", "template": "base", "state": "running"}, 1),
        ({"search": "filtered", "template": "none"}, 0),
    ]
    with Sandbox.create(client=client, alias="filtered-1", metadata=entries) as sandbox:
        for condition, total in conditions:
            found = [info.id for info in Sandbox.list(client=client, **condition)]
            assert found == [sandbox.id] * total, condition
            assert Sandbox.count(client=client, **condition) == total, condition


def test_every_error_code_has_a_class() -> None:
    codes = json.loads((ROOT / "openapi" / "v1.json").read_text())["components"]["schemas"]["Code"]["enum"]
    for code in codes:
        error = errors.from_response(400, {"error": "what", "code": code, "category": "auth"}, "req_1")
        assert type(error).__name__ == "".join(word.capitalize() for word in code.split("_"))
        assert (error.code, error.category, error.request_id) == (code, "auth", "req_1")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.__dict__) == (type(error), error.__dict__)
    # Its remedy is about the API, and only where the server has one.
    body = {"error": "what", "code": "SANDBOX_NOT_FOUND", "remedy": "GET /sandboxes lists yours"}
    assert errors.from_response(404, body, None).remedy == "Sandbox.list() lists yours"
    assert errors.from_response(404, body | {"remedy": None}, None).remedy is None
    assert errors.from_response(409, body | {"code": "CONFLICT"}, None).remedy is None
    assert errors.from_response(409, body | {"code": "CONFLICT", "remedy": "wait"}, None).remedy == "wait"
    assert set(errors._REMEDIES) < set(codes)
    unknown = errors.from_response(418, {"error": "new", "code": "NEW_CODE", "category": "quota"}, None)
    assert (type(unknown), unknown.code, str(unknown)) == (errors.AtollError, "NEW_CODE", "new")


def test_remedies_use_terms_of_the_sdk() -> None:
    codes = json.loads((ROOT / "openapi" / "v1.json").read_text())["components"]["schemas"]["Code"]["enum"]
    samples = json.loads((ROOT / "sdks" / "remedies.cases.json").read_text())
    assert {sample["code"] for sample in samples} == set(codes)
    http = re.compile(r'(GET|POST|PUT|PATCH|DELETE) |…/|"\w+":|[{}]|X-API-Key|header|[a-z][A-Z]')
    remedies = {}
    for sample in samples:
        remedy = errors.from_response(400, {"error": "what", **sample}, None).remedy
        remedies[sample["code"], sample["remedy"]] = remedy
        assert remedy is None or not http.search(remedy), (sample, remedy)
        # Only a body that no call of the SDK sends has nothing to say.
        assert remedy or sample["details"].get("field") == "body", sample
    expected = {remedy for (code, _), remedy in remedies.items() if code == "INVALID_REQUEST"}
    for remedy in (
        "give an integer as timeout",
        "give an integer of at least 0 as memory_mb",
        "memory_mb: give mebibytes, such as 512",
        "give command",
        "see the reference of this SDK for cpu_count",
        "leave out tiemout: the server's version may be older than this SDK",
    ):
        assert remedy in expected, expected


def test_wrong_key_url_and_server_have_distinct_errors(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.Unauthenticated) as raised:
        Sandbox.list(client=Client(server.url))
    assert raised.value.remedy and "ATOLL_API_KEY" in raised.value.remedy and "X-API-Key" not in raised.value.remedy
    assert type(raised.value) is errors.MissingApiKey
    with pytest.raises(errors.Unauthenticated) as raised:
        Sandbox.list(client=Client(server.url, "atl_" + "0" * 64))
    assert type(raised.value) is errors.InvalidApiKey and raised.value.status == 401
    assert raised.value.remedy and "ATOLL_API_KEY" in raised.value.remedy and "X-API-Key" not in raised.value.remedy
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(errors.ConnectionFailed, match=f"no server answers at http://127.0.0.1:{port}") as refused:
        Sandbox.list(client=Client(f"http://127.0.0.1:{port}"))
    assert "atoll serve" in str(refused.value) and isinstance(refused.value, ConnectionError)
    with pytest.raises(errors.ConnectionFailed, match="no server answers"):
        Sandbox.list(client=Client("http://name.invalid"))
    for url in ("127.0.0.1:8080", "ftp://host", "http://", "http://user@host", "http://host:port", "unix://here"):
        with pytest.raises(errors.InvalidConfiguration):
            Client(url)
    with pytest.raises(errors.InvalidConfiguration, match="key"):
        Client(server.url, "a\r\nb: c")
    with pytest.raises(errors.InvalidRequest) as wrong:
        Sandbox.create(client=server.client(), memory_mb=1)
    assert wrong.value.details["field"] == "memoryMB"
    with pytest.raises(errors.UnknownTemplate):
        Sandbox.create("no-such", client=server.client())
    with pytest.raises(errors.SandboxNotFound):
        Sandbox.connect("../keys", client=server.client())


def test_other_server_is_detected() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<html>" if self.path.startswith("/sandboxes?") else b""
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{page.server_port}")
        with pytest.raises(errors.UnexpectedAnswer, match="not JSON"):
            Sandbox.list(client=client)
        with pytest.raises(errors.UnexpectedAnswer, match="answered 404"):
            Sandbox.connect("x", client=client)
        page.shutdown()


def test_silent_server_exceeds_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
        with pytest.raises(errors.DeadlineExceeded, match=r"listing sandboxes took longer than 0\.2 s") as raised:
            Sandbox.list(client=client)
        assert isinstance(raised.value, TimeoutError)


def test_server_is_found_in_parameters_environment_and_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("ATOLL_URL", "ATOLL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert (Client().url, Client()._address.key) == ("http://127.0.0.1:8080", None)
    with pytest.raises(errors.InvalidConfiguration, match="atoll login"):
        Client(profile="work")
    file = tmp_path / "atoll" / "config.toml"
    file.parent.mkdir()
    file.write_text('default = "a"\n[profiles.a]\nurl = "http://a"\napi_key = "ka"\n[profiles.b]\nurl = "http://b"\n')
    assert (Client().url, Client()._address.key) == ("http://a", "ka")
    assert (Client(profile="b").url, Client(profile="b")._address.key) == ("http://b", None)
    # A profile's key goes to the profile's server alone.
    assert Client("http://c")._address.key is None
    monkeypatch.setenv("ATOLL_URL", "https://d/prefix/")
    assert (Client().url, Client()._address.key, Client()._address.path) == ("https://d/prefix", None, "/prefix")
    monkeypatch.setenv("ATOLL_API_KEY", "kd")
    assert Client()._address.key == "kd"
    assert "ka" not in repr(Client(profile="a")) and "kd" not in repr(Client())
    file.write_text("default =")
    with pytest.raises(errors.InvalidConfiguration, match="not TOML"):
        Client(profile="a")


def test_unix_socket_reaches_server(server: Server) -> None:
    url = f"unix://{server.data}/run/api.sock"
    # A Unix socket needs no key.
    with Client(url) as client, Sandbox.create(client=client) as sandbox:
        assert sandbox.commands.run("echo hello", on_stdout=len).stdout == "hello\n"
        terminal = sandbox.pty.create(shell="/bin/sh")
        terminal.send("echo =$((6*7))=; exit\n")
        assert b"=42=" in b"".join(terminal)

    async def on_a_loop() -> list[str]:
        async with AsyncClient(url) as client:
            return [info.id for info in await AsyncSandbox.list(client=client)]

    assert sandbox.id not in asyncio.run(on_a_loop())
    with pytest.raises(errors.ConnectionFailed, match="no server answers at unix:///no/such"):
        Sandbox.list(client=Client("unix:///no/such"))


def test_version_is_defined_once() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "sdks" / "python" / "pyproject.toml").read_text())
    assert project["project"]["version"] == atoll.__version__
