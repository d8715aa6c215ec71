# Generated from _async/sandbox.py by generate.py.
"""Sandboxes: isolated Linux environments with their own files, processes and network."""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .. import _html
from .._transport import Call
from ..errors import AtollError, SandboxNotFound
from ..models import Event, ExpiryAction, Network, Port, Sample, SandboxInfo, State, parse
from .client import Client, encoded
from .commands import Commands
from .files import Files
from .forward import Forward
from .pty import Ptys
from .sandbox_api import SandboxApi


def _conditions(
    state: State | None, template: str | None, metadata: Mapping[str, str] | None, search: str | None
) -> dict[str, str | None]:
    """The query for a list of sandboxes."""
    entries = {f"metadata.{key}": value for key, value in (metadata or {}).items()}
    return {"state": state, "template": template, "q": search, **entries}


class Sandbox:
    """A sandbox.

    `Sandbox.create()` creates a sandbox, which `with` deletes at its end. `Sandbox.connect(id)` returns
    an existing sandbox, which `with` does not delete.

    Attributes:
        id: The sandbox's id.
        info: The sandbox as the server last described it; `refresh()` updates it.
        client: The client of the server that has the sandbox.
        commands: Runs commands.
        files: Reads and changes files.
        pty: Opens terminals.
    """

    def __init__(self, client: Client, info: SandboxInfo, *, ends: bool) -> None:
        self.client, self.info, self.id = client, info, info.id
        #: `with` deletes the sandbox.
        self._ends = ends
        self._api = api = SandboxApi(client, info.id)
        self.commands = Commands(api)
        self.files = Files(api)
        self.pty = Ptys(api)

    @classmethod
    def create(
        cls,
        template: str | None = None,
        *,
        timeout: int | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        alias: str | None = None,
        cpu_count: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        pids: int | None = None,
        network: Network | None = None,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
        on_timeout: ExpiryAction | None = None,
        idle_timeout: int | None = None,
        on_idle: ExpiryAction | None = None,
        auto_resume: bool | None = None,
        durable: bool | None = None,
        client: Client | None = None,
    ) -> Sandbox:
        """Creates a sandbox and waits until it can run commands. All parameters are optional.

        Args:
            template: The template of its file system. The default is `base`.
            timeout: Lifetime in seconds. The default is 300; 0 disables the timeout.
            env: Environment variables of every command.
            metadata: Custom keys and values, by which `list` can filter.
            alias: An alternative to the id, unique in the org.
            cpu_count: Maximum number of CPUs.
            memory_mb: Memory limit in MiB.
            disk_mb: Disk limit in MiB.
            pids: Maximum number of processes and threads.
            network: `internet` or `none`. The default is `none`.
            allow: Allowed destinations: IPv4 addresses or CIDR blocks, with an optional `:port`.
            deny: Denied destinations, in the same form.
            on_timeout: Action when the timeout expires: `destroy` (the default), `stop` or `pause`.
            idle_timeout: Seconds without activity until `on_idle` applies.
            on_idle: Action when the sandbox is idle: `destroy`, `stop` or `pause`.
            auto_resume: Whether activity resumes a paused sandbox. The default is `True`.
            durable: Whether `fsync` in the sandbox waits for the disk, so that synced data survives a power failure.
            client: The client to use. The default is `Client.default()`.
        """
        client = client or Client.default()
        body = {
            "template": template,
            "timeout": timeout,
            "envs": dict(env) if env else None,
            "metadata": dict(metadata) if metadata else None,
            "alias": alias,
            "cpuCount": cpu_count,
            "memoryMB": memory_mb,
            "diskMB": disk_mb,
            "pids": pids,
            "network": network,
            "allow": list(allow) if allow else None,
            "deny": list(deny) if deny else None,
            "onTimeout": on_timeout,
            "idleTimeout": idle_timeout,
            "onIdle": on_idle,
            "autoResume": auto_resume,
            "durable": durable,
        }
        # With the idempotency key, a retry does not create a second sandbox.
        headers = {"idempotency-key": os.urandom(16).hex()}
        call = Call("POST", "/sandboxes", "creating a sandbox", {}, encoded(body), headers=headers, repeat=True)
        response = client.request(call)
        return cls(client, parse(SandboxInfo, response.json()), ends=True)

    @classmethod
    def connect(cls, id: str, *, client: Client | None = None) -> Sandbox:
        """Returns an existing sandbox by its id or alias. `with` does not delete it."""
        client = client or Client.default()
        response = SandboxApi(client, id).request("GET", "", "fetching the sandbox")
        return cls(client, parse(SandboxInfo, response.json()), ends=False)

    @classmethod
    def list(
        cls,
        *,
        state: State | None = None,
        template: str | None = None,
        metadata: Mapping[str, str] | None = None,
        search: str | None = None,
        limit: int | None = None,
        client: Client | None = None,
    ) -> list[SandboxInfo]:
        """The sandboxes that meet all conditions, newest first; all of them without a condition.

        Args:
            state: Only sandboxes in this state.
            template: Only sandboxes of the template with this name.
            metadata: Only sandboxes whose metadata has these entries.
            search: Only sandboxes whose id or alias contains this text; case is ignored.
            limit: Maximum number of sandboxes to return.
        """
        client = client or Client.default()
        conditions = _conditions(state, template, metadata, search)
        found: list[SandboxInfo] = []
        cursor: str | None = None
        while limit is None or len(found) < limit:
            left = 100 if limit is None else min(100, limit - len(found))
            query = {**conditions, "limit": left, "cursor": cursor}
            response = client.request(Call("GET", "/sandboxes", "listing sandboxes", query, repeat=True))
            found += [parse(SandboxInfo, one) for one in response.json()]
            cursor = response.headers.get("x-next-cursor")
            if cursor is None:
                break
        return found

    @classmethod
    def count(
        cls,
        *,
        state: State | None = None,
        template: str | None = None,
        metadata: Mapping[str, str] | None = None,
        search: str | None = None,
        client: Client | None = None,
    ) -> int:
        """The number of sandboxes that meet all conditions, which are those of `list`."""
        client = client or Client.default()
        query = {**_conditions(state, template, metadata, search), "limit": 1}
        response = client.request(Call("GET", "/sandboxes", "counting sandboxes", query, repeat=True))
        return int(response.headers["x-total-count"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.state} {self.info.template}>"

    def _repr_html_(self) -> str:
        return _html.card(self.info)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._ends:
            return
        try:
            self.kill()
        except AtollError as failure:
            if error is None:
                raise
            # The first error is the one to report.
            error.add_note(f"the sandbox {self.id} could not be deleted: {failure}")

    def kill(self) -> bool:
        """Deletes the sandbox and its files. Returns whether it existed."""
        try:
            self._api.request("DELETE", "", "deleting the sandbox")
        except SandboxNotFound:
            return False
        return True

    def refresh(self) -> SandboxInfo:
        """Fetches the current state of the sandbox, and updates `info`."""
        return self._updated((self._api.request("GET", "", "fetching the sandbox")).json())

    def stop(self) -> SandboxInfo:
        """Stops the sandbox: ends its processes and keeps its files."""
        return self._act("stop")

    def start(self) -> SandboxInfo:
        """Starts a stopped sandbox."""
        return self._act("start")

    def restart(self) -> SandboxInfo:
        """Stops the sandbox and starts it again."""
        # Not idempotent: a second restart would end processes that were started after the first one.
        return self._act("restart", repeat=False)

    def pause(self) -> SandboxInfo:
        """Pauses the sandbox: freezes its processes and its timeouts."""
        return self._act("pause")

    def resume(self, timeout: int | None = None) -> SandboxInfo:
        """Resumes a paused sandbox. `timeout` is its new lifetime in seconds; the default is the remaining time."""
        return self._act("resume", {"timeout": timeout})

    def set_timeout(self, timeout: int) -> SandboxInfo:
        """Sets the remaining lifetime to `timeout` seconds from now; 0 disables the timeout."""
        return self._act("timeout", {"timeout": timeout})

    def keep_alive(self) -> SandboxInfo:
        """Counts as activity: resets the idle timer."""
        return self._act("keepalive")

    def _act(self, act: str, body: dict[str, Any] | None = None, *, repeat: bool = True) -> SandboxInfo:
        # All actions except restart are idempotent.
        response = self._api.request("POST", f"/{act}", f"{act} of the sandbox", json=body or {}, repeat=repeat)
        return self._updated(response.json())

    def _updated(self, body: dict[str, Any]) -> SandboxInfo:
        self.info = parse(SandboxInfo, body)
        return self.info

    def update(
        self,
        *,
        alias: str | None = None,
        metadata: Mapping[str, str] | None = None,
        cpu_count: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        pids: int | None = None,
        on_timeout: ExpiryAction | None = None,
        idle_timeout: int | None = None,
        on_idle: ExpiryAction | None = None,
        auto_resume: bool | None = None,
    ) -> SandboxInfo:
        """Changes settings of a sandbox, also while it runs. `None` keeps a value; `metadata` replaces all entries."""
        body = {
            "alias": alias,
            "metadata": None if metadata is None else dict(metadata),
            "cpuCount": cpu_count,
            "memoryMB": memory_mb,
            "diskMB": disk_mb,
            "pids": pids,
            "onTimeout": on_timeout,
            "idleTimeout": idle_timeout,
            "onIdle": on_idle,
            "autoResume": auto_resume,
        }
        response = self._api.request("PATCH", "", "updating the sandbox", json=body, repeat=True)
        return self._updated(response.json())

    def set_network(
        self, network: Network | None = None, *, allow: Sequence[str] = (), deny: Sequence[str] = ()
    ) -> SandboxInfo:
        """Sets the network mode and its rules: IPv4 addresses or CIDR blocks, with an optional `:port`."""
        body = {"network": network, "allow": list(allow), "deny": list(deny)}
        response = self._api.request("PUT", "/network", "setting the network", json=body)
        return self._updated(response.json())

    def ports(self) -> builtins.list[Port]:
        """Lists the listening ports."""
        return [parse(Port, one) for one in (self._api.request("GET", "/ports", "listing ports")).json()]

    def metrics(self, start: datetime | None = None, end: datetime | None = None) -> builtins.list[Sample]:
        """Returns resource usage between `start` and `end`, oldest first. The default is the last hour."""
        query = {"start": start and int(start.timestamp()), "end": end and int(end.timestamp())}
        response = self._api.request("GET", "/metrics", "reading metrics", query=query)
        return [parse(Sample, one) for one in response.json()]

    def events(self, after: int = 0) -> builtins.list[Event]:
        """Lists at most 100 events whose number is greater than `after`."""
        response = self._api.request("GET", "/events", "listing events", query={"after": after})
        return [parse(Event, one) for one in response.json()]

    def forward(self, port: int, local_port: int = 0, *, host: str = "127.0.0.1") -> Forward:
        """Forwards a local port to a port of the sandbox until the forward is closed, as in
        `with sandbox.forward(8000) as forward`. `forward.url` is the local URL. Servers that listen only on the
        sandbox's loopback address are reachable too.

        Args:
            port: The port in the sandbox.
            local_port: The local port. The default is a free port.
            host: The local address to listen on.
        """
        self.refresh()
        return Forward.open(self._api, port, local_port, host)
