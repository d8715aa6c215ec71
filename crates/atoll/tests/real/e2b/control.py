"""Sandboxes, with the synchronous client."""

import inspect
import json
import os
import time
import urllib.request
from datetime import datetime, timedelta, timezone

from e2b import (
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

from expect import raises, same, until

BOOT = "cat /proc/sys/kernel/random/boot_id"


def ours(method, path, body=None):
    """What our own API says."""
    request = urllib.request.Request(
        os.environ["E2B_SANDBOX_URL"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def ends_in(info, seconds):
    left = (info.end_at - datetime.now(timezone.utc)).total_seconds()
    assert abs(left - seconds) < 10, (left, seconds)


def facts():
    sandbox = Sandbox.create("base", timeout=100, metadata={"who": "a b&c=ü"}, envs={"A": "1"})
    try:
        info = sandbox.get_info()
        same((info.sandbox_id, info.template_id, info.state), (sandbox.sandbox_id, "base", SandboxState.RUNNING))
        same((info.metadata, info.envd_version), ({"who": "a b&c=ü"}, "0.6.13"))
        same((info.lifecycle["on_timeout"], info.lifecycle["auto_resume"]), ("kill", False))
        same((info.allow_internet_access, info.cpu_count >= 1, info.memory_mb > 0), (True, True, True))
        ends_in(info, 100)
        same(Sandbox.get_info(sandbox.sandbox_id), info)
        # Both ways, and to the byte the same if a connect does not extend.
        sandbox.set_timeout(50)
        before = sandbox.get_info()
        ends_in(before, 50)
        other = Sandbox.connect(sandbox.sandbox_id, timeout=10)
        same(other.get_info().end_at, before.end_at)
        same(other.commands.run("echo $A").stdout, "1\n")
        sandbox.connect(timeout=200)
        ends_in(sandbox.get_info(), 200)
        Sandbox.set_timeout(sandbox.sandbox_id, 300)
        ends_in(sandbox.get_info(), 300)
        # The same sandbox in our own API.
        seen = ours("GET", f"/sandboxes/{sandbox.sandbox_id}")
        same((seen["state"], seen["metadata"], seen["templateID"]), ("running", info.metadata, "base"))
        assert sandbox.sandbox_id in [one["sandboxID"] for one in ours("GET", "/sandboxes")]
    finally:
        same(sandbox.kill(), True)
    same((sandbox.kill(), Sandbox.kill(sandbox.sandbox_id), sandbox.is_running()), (False, False, False))


def from_the_other_side():
    made = ours("POST", "/sandboxes", {"template": "base", "timeout": 60, "metadata": {"made": "here"}})
    sandbox = Sandbox.connect(made["sandboxID"])
    same(sandbox.get_info().metadata, {"made": "here"})
    same(sandbox.commands.run("echo hello").stdout, "hello\n")
    ours("DELETE", f"/sandboxes/{made['sandboxID']}")
    same((sandbox.is_running(), sandbox.kill()), (False, False))


def pauses():
    with Sandbox.create(timeout=100) as sandbox:
        run = sandbox.commands.run
        # With its memory: its processes continue.
        handle = run("sleep 600", background=True)
        boot = run(BOOT).stdout
        sandbox.files.write("kept", "kept")
        begin = time.monotonic()
        sandbox.pause()
        assert time.monotonic() - begin < 2, "a pause answers within two seconds"
        same((sandbox.is_running(), sandbox.get_info().state), (False, SandboxState.PAUSED))
        same(sandbox.pause(), False)
        with raises(TimeoutException):
            run("true")
        same(sandbox.connect(timeout=100).is_running(), True)
        same(run(BOOT).stdout, boot)
        run(f"kill -0 {handle.pid}")
        ends_in(sandbox.get_info(), 100)
        # Without memory: its files remain, and it boots again.
        sandbox.pause(keep_memory=False)
        same(sandbox.get_info().state, SandboxState.PAUSED)
        Sandbox.connect(sandbox.sandbox_id, timeout=100)
        again = run(BOOT).stdout
        assert again != boot
        same(sandbox.files.read("kept"), "kept")
        sandbox.pause()
        if "on_resume" in inspect.signature(Sandbox.connect).parameters:
            # Its memory can be discarded later, too.
            sandbox.connect(on_resume="reboot")
            assert run(BOOT).stdout != again
            same(sandbox.files.read("kept"), "kept")
            sandbox.pause()
    # A paused sandbox can be killed.
    with raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)


def endings():
    """What happens when the time is up."""
    killed = Sandbox.create(timeout=100)
    paused = Sandbox.create(timeout=100, lifecycle={"on_timeout": "pause"})
    wakes = Sandbox.create(timeout=100, lifecycle={"on_timeout": "pause", "auto_resume": True})
    same((wakes.get_info().lifecycle["on_timeout"], wakes.get_info().lifecycle["auto_resume"]), ("pause", True))
    for sandbox in [killed, paused, wakes]:
        sandbox.set_timeout(0)
    # An end acts within a second; the client itself takes some of it.
    until("the end", lambda: not killed.is_running(), seconds=2)
    with raises(NotFoundException):
        killed.get_info()
    for sandbox in [paused, wakes]:
        until("the pause", lambda: sandbox.get_info().state == SandboxState.PAUSED, seconds=2)
    same(paused.is_running(), False)
    # A request would resume it; a check whether it runs does not.
    same((wakes.is_running(), wakes.get_info().state), (True, SandboxState.PAUSED))
    # Any other request resumes it.
    same(wakes.commands.run("echo awake").stdout, "awake\n")
    same(wakes.get_info().state, SandboxState.RUNNING)
    same((paused.kill(), wakes.kill()), (True, True))


    # A pause without memory keeps the files only.
    sandbox = Sandbox.create(timeout=100, lifecycle={"on_timeout": {"action": "pause", "keep_memory": False}})
    boot = sandbox.commands.run(BOOT).stdout
    sandbox.set_timeout(0)
    until("the pause", lambda: sandbox.get_info().state == SandboxState.PAUSED)
    sandbox.connect(timeout=100)
    assert sandbox.commands.run(BOOT).stdout != boot
    sandbox.kill()


def every_page(paginator):
    found = []
    while paginator.has_next:
        found += paginator.next_items()
    return [info.sandbox_id for info in found]


def lists():
    begin = datetime.now(timezone.utc)
    mine = {"suite": "list of a+b %20 ü"}
    made = [Sandbox.create(timeout=100, metadata={**mine, "n": str(n)}) for n in range(3)]
    ids = [sandbox.sandbox_id for sandbox in made]
    query = SandboxQuery(metadata=mine)
    same(every_page(Sandbox.list(query)), ids[::-1])
    same(every_page(Sandbox.list(query, order="asc")), ids)
    same(every_page(Sandbox.list(query, limit=1)), ids[::-1])
    page = Sandbox.list(query, limit=2)
    page.next_items()
    same(every_page(Sandbox.list(query, limit=2, next_token=page.next_token)), ids[:1])
    whole = Sandbox.list(query, limit=3)
    whole.next_items()
    same((whole.has_next, whole.next_token), (False, None))
    same(every_page(Sandbox.list(SandboxQuery(metadata={**mine, "n": "1"}))), [ids[1]])
    made[0].pause()
    running, paused = [SandboxState.RUNNING], [SandboxState.PAUSED]
    same(every_page(Sandbox.list(SandboxQuery(metadata=mine, state=running))), [ids[2], ids[1]])
    same(every_page(Sandbox.list(SandboxQuery(metadata=mine, state=paused))), [ids[0]])
    same(len(every_page(Sandbox.list(SandboxQuery(metadata=mine, state=running + paused)))), 3)
    same(len(every_page(Sandbox.list(SandboxQuery(metadata=mine, template="base", started_after=begin)))), 3)
    same(every_page(Sandbox.list(SandboxQuery(metadata=mine, template="no-such"))), [])
    later = datetime.now(timezone.utc) + timedelta(seconds=60)
    same(every_page(Sandbox.list(SandboxQuery(metadata=mine, started_after=later))), [])
    for sandbox in made:
        sandbox.kill()
    same(every_page(Sandbox.list(query)), [])


def networks():
    with Sandbox.create(timeout=100, allow_internet_access=False) as sandbox:
        same(sandbox.get_info().allow_internet_access, False)
    rules = {"allow_out": ["1.1.1.1", "9.9.9.0/24"], "deny_out": ["0.0.0.0/0"]}
    with Sandbox.create(timeout=100, network=rules) as sandbox:
        network = sandbox.get_info().network
        same((network["allow_out"], network["deny_out"]), (["1.1.1.1", "9.9.9.0/24"], ["0.0.0.0/0"]))
        # Everything that is not named is cleared.
        sandbox.update_network({"deny_out": ["8.8.8.8"]})
        network = sandbox.get_info().network
        same((network.get("allow_out") or [], network["deny_out"]), ([], ["8.8.8.8"]))
    with raises(SandboxException, "is a domain"):
        Sandbox.create(timeout=100, network={"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]})


def metrics():
    with Sandbox.create(timeout=100) as sandbox:
        found = until("a sample", sandbox.get_metrics, seconds=30)[0]
        info = sandbox.get_info()
        same((found.cpu_count, found.mem_total >> 20), (info.cpu_count, info.memory_mb))
        assert 0 < found.mem_used <= found.mem_total and 0 <= found.disk_used < found.disk_total, found
        assert abs((datetime.now(timezone.utc) - found.timestamp).total_seconds()) < 60, found
        past = datetime.now(timezone.utc) - timedelta(days=2)
        same(sandbox.get_metrics(start=past, end=past + timedelta(days=1)), [])
    with raises(NotFoundException):
        sandbox.get_metrics()


def refusals():
    wrong = "e2b_" + "0" * 64
    with raises(AuthenticationException):
        Sandbox.create(timeout=10, api_key=wrong)
    with raises(NotFoundException):
        Sandbox.connect("i" + "0" * 20)
    with raises(NotFoundException):
        Sandbox.get_info("i" + "0" * 20)
    with raises(NotFoundException):
        Sandbox.set_timeout("i" + "0" * 20, 10)
    with raises(NotFoundException):
        Sandbox.pause("i" + "0" * 20)
    same(Sandbox.kill("i" + "0" * 20), False)
    with raises((SandboxException, NotFoundException), "no-such-template"):
        Sandbox.create("no-such-template", timeout=10)


facts()
from_the_other_side()
pauses()
endings()
lists()
networks()
metrics()
refusals()
