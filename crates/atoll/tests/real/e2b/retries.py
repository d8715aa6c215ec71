"""An answer that is lost on its way: the client asks again by itself, with the same key, and gets the same sandbox."""

import http.server
import inspect
import os
import threading
import urllib.request

from e2b import Sandbox, SandboxException
from expect import raises, same


class Losing(http.server.BaseHTTPRequestHandler):
    """Hands requests on, and loses the first answer."""

    asked = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        names = ("Content-Type", "X-API-KEY", "Idempotency-Key")
        headers = {name: self.headers[name] for name in names if self.headers[name]}
        request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/e2b" + self.path, body, headers)
        with urllib.request.urlopen(request) as answer:
            said = answer.read()
        self.asked.append(self.headers["Idempotency-Key"])
        self.send_response(503 if len(self.asked) == 1 else 201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


def count():
    return len(Sandbox.list().next_items())


def main():
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Losing)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{proxy.server_port}"
    sandbox = Sandbox.create(timeout=100, idempotency_key="once", api_url=url)
    same(Losing.asked, ["once", "once"])
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
