"""A lost response: the client repeats the request with the same idempotency key and gets the same sandbox."""

import http.server
import inspect
import os
import threading
import urllib.request

from e2b import Sandbox, SandboxException
from expect import raises, same


class LossyProxy(http.server.BaseHTTPRequestHandler):
    """Forwards requests and replaces the first response by an error."""

    keys = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        names = ("Content-Type", "X-API-KEY", "Idempotency-Key")
        headers = {name: self.headers[name] for name in names if self.headers[name]}
        request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/e2b" + self.path, body, headers)
        with urllib.request.urlopen(request) as response:
            content = response.read()
        self.keys.append(self.headers["Idempotency-Key"])
        self.send_response(503 if len(self.keys) == 1 else 201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def count():
    return len(Sandbox.list().next_items())


def main():
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), LossyProxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{proxy.server_port}"
    sandbox = Sandbox.create(timeout=100, idempotency_key="once", api_url=url)
    same(LossyProxy.keys, ["once", "once"])
    same(count(), 1)
    # A repeated request returns the same sandbox; a different request with the same key is refused.
    same(Sandbox.create(timeout=100, idempotency_key="once").sandbox_id, sandbox.sandbox_id)
    with raises(SandboxException, "422"):
        Sandbox.create(timeout=101, idempotency_key="once")
    same(count(), 1)
    Sandbox.kill(sandbox.sandbox_id)
    same(count(), 0)
    proxy.shutdown()


# Older releases do not support idempotency keys.
if "idempotency_key" in inspect.signature(Sandbox.create).parameters:
    main()
