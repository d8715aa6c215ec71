"""An agent like the ones in E2B's examples: a model requests tools, which run in a sandbox, until it has the result.
Here the model is a script, so that the program needs no external service."""

import time
import urllib.error
import urllib.request

from e2b import CommandExitException, Sandbox

PROGRAM = """
import json, sys
numbers = [int(word) for word in sys.argv[1:]]
print(json.dumps({"sum": sum(numbers), "largest": max(numbers)}))
"""
PAGE = "<h1>{result}</h1>"


def write_file(sandbox, path, content):
    return sandbox.files.write(path, content).path


def run_command(sandbox, command):
    try:
        return sandbox.commands.run(command).stdout
    except CommandExitException as error:
        return f"exit code {error.exit_code}: {error.stderr}"


def read_file(sandbox, path):
    return sandbox.files.read(path)


def serve(sandbox, directory, port):
    sandbox.commands.run(f"python3 -m http.server {port} --directory {directory}", background=True)
    return f"https://{sandbox.get_host(port)}"


def fetch(sandbox, url):
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url) as response:
                return response.read().decode()
        except urllib.error.HTTPError as error:
            # The server in the sandbox does not listen yet.
            if error.code != 502 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


TOOLS = {tool.__name__: tool for tool in [write_file, run_command, read_file, serve, fetch]}


def model():
    """Requests one tool after another; each request depends on the earlier results."""
    failed = yield "run_command", {"command": "python3 numbers/count.py 1 2 3"}
    assert failed.startswith("exit code 2"), failed
    path = yield "write_file", {"path": "numbers/count.py", "content": PROGRAM}
    output = yield "run_command", {"command": f"python3 {path} 4 8 15 16 23 42 | tee result.json"}
    content = yield "read_file", {"path": "result.json"}
    assert content == output == '{"sum": 108, "largest": 42}\n', (content, output)
    yield "write_file", {"path": "site/index.html", "content": PAGE.format(result=content.strip())}
    url = yield "serve", {"directory": "site", "port": 8000}
    page = yield "fetch", {"url": url}
    return page


def main():
    with Sandbox.create(timeout=120) as sandbox:
        requests = model()
        name, arguments = next(requests)
        while True:
            result = TOOLS[name](sandbox, **arguments)
            try:
                name, arguments = requests.send(result)
            except StopIteration as done:
                print(done.value)
                assert done.value == '<h1>{"sum": 108, "largest": 42}</h1>', done.value
                return


main()
