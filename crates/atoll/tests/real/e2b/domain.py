"""The client is configured with a domain only: the API and each port of a sandbox have host names, reached by TLS."""

import os
import ssl
import urllib.error
import urllib.request

from e2b import Sandbox
from expect import same, until

domain = os.environ["E2B_DOMAIN"]
sandbox = Sandbox.create(timeout=60)
same(sandbox.get_host(8000), f"8000-{sandbox.sandbox_id}.{domain}")
assert sandbox.is_running()
same(sandbox.commands.run("echo hello").stdout, "hello\n")
sandbox.files.write("page/index.html", "a page")
same(sandbox.files.read("page/index.html"), "a page")

sandbox.commands.run("python3 -m http.server 8000 --bind 127.0.0.1 --directory page", background=True)
trusted = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])


def page():
    try:
        with urllib.request.urlopen(f"https://{sandbox.get_host(8000)}/", context=trusted) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        same(error.code, 502)
        return None


until("the page is served", lambda: page() == "a page")
same(Sandbox.connect(sandbox.sandbox_id).get_host(8000), sandbox.get_host(8000))
assert sandbox.kill()
assert not sandbox.is_running()
