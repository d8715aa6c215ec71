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


def atoll_api(method, path, body=None):
    """Calls Atoll's API."""
    request = urllib.request.Request(
        os.environ["E2B_SANDBOX_URL"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        text = response.read()
        return json.loads(text) if text else None


def ends_in(info, seconds):
    left = (info.end_at - datetime.now(timezone.utc)).total_seconds()
    assert abs(left - seconds) < 10, (left, seconds)


def basics():
    sandbox = Sandbox.create("base", timeout=100, metadata={"label": "a b&c=ü"}, envs={"A": "1"})
    try:
        info = sandbox.get_info()
        same((info.sandbox_id, info.template_id, info.state), (sandbox.sandbox_id, "base", SandboxState.RUNNING))
        same((info.metadata, info.envd_version), ({"label": "a b&c=ü"}, "0.6.13"))
        same((info.lifecycle["on_timeout"], info.lifecycle["auto_resume"]), ("kill", False))
        same((info.allow_internet_access, info.cpu_count >= 1, info.memory_mb > 0), (True, True, True))
        ends_in(info, 100)
        same(Sandbox.get_info(sandbox.sandbox_id), info)
        # set_timeout shortens and extends; connect only extends.
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
        # Atoll's API shows the same sandbox.
        details = atoll_api("GET", f"/sandboxes/{sandbox.sandbox_id}")
        same((details["state"], details["metadata"], details["templateID"]), ("running", info.metadata, "base"))
        assert sandbox.sandbox_id in [one["sandboxID"] for one in atoll_api("GET", "/sandboxes")]
    finally:
        same(sandbox.kill(), True)
    same((sandbox.kill(), Sandbox.kill(sandbox.sandbox_id), sandbox.is_running()), (False, False, False))


def created_by_atoll_api():
    created = atoll_api("POST", "/sandboxes", {"template": "base", "timeout": 60, "metadata": {"source": "api"}})
    sandbox = Sandbox.connect(created["sandboxID"])
    same(sandbox.get_info().metadata, {"source": "api"})
    same(sandbox.commands.run("echo hello").stdout, "hello\n")
    atoll_api("DELETE", f"/sandboxes/{created['sandboxID']}")
    same((sandbox.is_running(), sandbox.kill()), (False, False))


def pauses():
    with Sandbox.create(timeout=100) as sandbox:
        run = sandbox.commands.run
        # With memory: the processes continue.
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
        # Without memory: the files remain, and the sandbox boots again.
        sandbox.pause(keep_memory=False)
        same(sandbox.get_info().state, SandboxState.PAUSED)
        Sandbox.connect(sandbox.sandbox_id, timeout=100)
        second_boot = run(BOOT).stdout
        assert second_boot != boot
        same(sandbox.files.read("kept"), "kept")
        sandbox.pause()
        if "on_resume" in inspect.signature(Sandbox.connect).parameters:
            # Memory can also be discarded at the connect.
            sandbox.connect(on_resume="reboot")
            assert run(BOOT).stdout != second_boot
            same(sandbox.files.read("kept"), "kept")
            sandbox.pause()
    # A paused sandbox can be killed.
    with raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)


def timeouts():
    """Actions at the end of the timeout."""
    killed = Sandbox.create(timeout=100)
    paused = Sandbox.create(timeout=100, lifecycle={"on_timeout": "pause"})
    auto_resumed = Sandbox.create(timeout=100, lifecycle={"on_timeout": "pause", "auto_resume": True})
    same((auto_resumed.get_info().lifecycle["on_timeout"], auto_resumed.get_info().lifecycle["auto_resume"]), ("pause", True))
    for sandbox in [killed, paused, auto_resumed]:
        sandbox.set_timeout(0)
    # The action follows within a second, plus the time of the client.
    until("the end", lambda: not killed.is_running(), seconds=2)
    with raises(NotFoundException):
        killed.get_info()
    for sandbox in [paused, auto_resumed]:
        until("the pause", lambda: sandbox.get_info().state == SandboxState.PAUSED, seconds=2)
    same(paused.is_running(), False)
    # is_running does not resume the sandbox.
    same((auto_resumed.is_running(), auto_resumed.get_info().state), (True, SandboxState.PAUSED))
    # Any other request resumes it.
    same(auto_resumed.commands.run("echo awake").stdout, "awake\n")
    same(auto_resumed.get_info().state, SandboxState.RUNNING)
    same((paused.kill(), auto_resumed.kill()), (True, True))


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
    metadata = {"suite": "list of a+b %20 ü"}
    created = [Sandbox.create(timeout=100, metadata={**metadata, "n": str(n)}) for n in range(3)]
    ids = [sandbox.sandbox_id for sandbox in created]
    query = SandboxQuery(metadata=metadata)
    same(every_page(Sandbox.list(query)), ids[::-1])
    same(every_page(Sandbox.list(query, order="asc")), ids)
    same(every_page(Sandbox.list(query, limit=1)), ids[::-1])
    page = Sandbox.list(query, limit=2)
    page.next_items()
    same(every_page(Sandbox.list(query, limit=2, next_token=page.next_token)), ids[:1])
    whole = Sandbox.list(query, limit=3)
    whole.next_items()
    same((whole.has_next, whole.next_token), (False, None))
    same(every_page(Sandbox.list(SandboxQuery(metadata={**metadata, "n": "1"}))), [ids[1]])
    created[0].pause()
    running, paused = [SandboxState.RUNNING], [SandboxState.PAUSED]
    same(every_page(Sandbox.list(SandboxQuery(metadata=metadata, state=running))), [ids[2], ids[1]])
    same(every_page(Sandbox.list(SandboxQuery(metadata=metadata, state=paused))), [ids[0]])
    same(len(every_page(Sandbox.list(SandboxQuery(metadata=metadata, state=running + paused)))), 3)
    same(len(every_page(Sandbox.list(SandboxQuery(metadata=metadata, template="base", started_after=begin)))), 3)
    same(every_page(Sandbox.list(SandboxQuery(metadata=metadata, template="no-such"))), [])
    later = datetime.now(timezone.utc) + timedelta(seconds=60)
    same(every_page(Sandbox.list(SandboxQuery(metadata=metadata, started_after=later))), [])
    for sandbox in created:
        sandbox.kill()
    same(every_page(Sandbox.list(query)), [])


def networks():
    with Sandbox.create(timeout=100, allow_internet_access=False) as sandbox:
        same(sandbox.get_info().allow_internet_access, False)
    rules = {"allow_out": ["1.1.1.1", "9.9.9.0/24"], "deny_out": ["0.0.0.0/0"]}
    with Sandbox.create(timeout=100, network=rules) as sandbox:
        network = sandbox.get_info().network
        same((network["allow_out"], network["deny_out"]), (["1.1.1.1", "9.9.9.0/24"], ["0.0.0.0/0"]))
        # An update replaces all rules.
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


def errors():
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


basics()
created_by_atoll_api()
pauses()
timeouts()
lists()
networks()
metrics()
errors()
