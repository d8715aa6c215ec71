"""What E2B's synchronous client for Python needs for its usual calls. Prints a line of JSON for each figure."""

import json
import os
import sys
import time
import urllib.request

from e2b import Sandbox

MEGABYTES = 100


def filled():
    """Waits until sandboxes are ready, as they are on a server that is not overrun."""
    while True:
        with urllib.request.urlopen(os.environ["E2B_SANDBOX_URL"] + "/readyz") as answer:
            if json.load(answer)["pool"]["warm"] >= 16:
                return
        time.sleep(0.01)


def timed(work):
    begin = time.perf_counter()
    result = work()
    return result, (time.perf_counter() - begin) * 1000


def tell(figure, samples):
    print(json.dumps({"figure": figure, "samples": samples}), flush=True)


def create():
    begin = time.perf_counter()
    sandbox = Sandbox.create()
    sandbox.commands.run("true")
    took = (time.perf_counter() - begin) * 1000
    sandbox.kill()
    return took


def calls():
    created, commands, alive = [], [], []
    # Warm: this one connects the client, and is the first of the server with a network.
    filled()
    tell("first", [create()])
    for number in range(100):
        if number % 8 == 0:
            filled()
        created.append(create())
    with Sandbox.create() as sandbox:
        for _ in range(300):
            alive.append(timed(sandbox.is_running)[1])
            commands.append(timed(lambda: sandbox.commands.run("true"))[1])
    tell("alive", alive)
    tell("create", created)
    tell("command", commands)


def files():
    data = os.urandom(1_000_000) * MEGABYTES
    written, read = [], []
    with Sandbox.create() as sandbox:
        for _ in range(5):
            _, took = timed(lambda: sandbox.files.write("big", data))
            written.append(took)
            back, took = timed(lambda: sandbox.files.read("big", format="bytes"))
            read.append(took)
            assert bytes(back) == data
    tell("write", written)
    tell("read", read)


{"calls": calls, "files": files}[sys.argv[1]]()
