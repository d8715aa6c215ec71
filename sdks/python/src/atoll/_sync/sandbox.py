# Made from _async/sandbox.py by generate.py.
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
from .door import Door
from .files import Files
from .forward import Forward
from .pty import Ptys


def _conditions(
    state: State | None, template: str | None, metadata: Mapping[str, str] | None, search: str | None
) -> dict[str, str | None]:
    """The query for a list of sandboxes."""
    entries = {f"metadata.{key}": value for key, value in (metadata or {}).items()}
    return {"state": state, "template": template, "q": search, **entries}


class Sandbox:
    """A sandbox. `Sandbox.create()` makes one, and `with` ends it; `Sandbox.connect(id)` finds one,
    which stays.

    Attributes:
        id: Its name in every call.
        info: What was last heard of it; `refresh()` asks again.
        client: The server it is on.
        commands: Runs commands in it.
        files: Reads and changes its files.
        pty: Opens terminals in it.
    """

    def __init__(self, client: Client, info: SandboxInfo, *, ends: bool) -> None:
        self.client, self.info, self.id = client, info, info.id
        #: `with` ends it.
        self._ends = ends
        self._door = door = Door(client, info.id)
        self.commands = Commands(door)
        self.files = Files(door)
        self.pty = Ptys(door)

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
        """Makes a sandbox. A command works when it is there. Everything may be left out.

        Args:
            template: Its starting files; `base` if nothing is said.
            timeout: How long it lives, in seconds: 300 if nothing is said, and 0 is without end.
            env: Variables of every command.
            metadata: Words of your own.
            alias: Another name for it, unique in the org.
            cpu_count: A ceiling, as all limits are.
            memory_mb: In mebibytes.
            disk_mb: In mebibytes.
            pids: How many processes and threads it may have.
            network: `internet`, or `none`, which it is if nothing is said.
            allow: What it may reach: IPv4 addresses or blocks, with `:port` perhaps.
            deny: What it may not reach.
            on_timeout: `destroy` (if nothing is said), `stop` or `pause` it then.
            idle_timeout: After how many seconds without use `on_idle` happens.
            on_idle: `destroy`, `stop` or `pause`.
            auto_resume: Whether a use of it while it is paused lets it go on; it does if nothing is said.
            durable: Whether `fsync` inside waits for the disk, so that what was synced survives a power cut.
            client: The server; the default one if nothing is said.
        """
        client = client or Client.default()
        asked = {
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
        # The key makes it one sandbox, however often it has to be asked for.
        headers = {"idempotency-key": os.urandom(16).hex()}
        call = Call("POST", "/sandboxes", "making a sandbox", {}, encoded(asked), headers=headers, repeat=True)
        answer = client.request(call)
        return cls(client, parse(SandboxInfo, answer.json()), ends=True)

    @classmethod
    def connect(cls, id: str, *, client: Client | None = None) -> Sandbox:
        """A sandbox that is there, by its id or alias. `with` does not end it."""
        client = client or Client.default()
        answer = Door(client, id).ask("GET", "", "looking for the sandbox")
        return cls(client, parse(SandboxInfo, answer.json()), ends=False)

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
            limit: At most so many.
        """
        client = client or Client.default()
        conditions = _conditions(state, template, metadata, search)
        found: list[SandboxInfo] = []
        cursor: str | None = None
        while limit is None or len(found) < limit:
            left = 100 if limit is None else min(100, limit - len(found))
            query = {**conditions, "limit": left, "cursor": cursor}
            answer = client.request(Call("GET", "/sandboxes", "listing sandboxes", query, repeat=True))
            found += [parse(SandboxInfo, one) for one in answer.json()]
            cursor = answer.headers.get("x-next-cursor")
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
        answer = client.request(Call("GET", "/sandboxes", "counting sandboxes", query, repeat=True))
        return int(answer.headers["x-total-count"])

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
            # What went wrong first is what matters.
            error.add_note(f"the sandbox {self.id} could not be ended: {failure}")

    def kill(self) -> bool:
        """Deletes it, with its files; whether it was there."""
        try:
            self._door.ask("DELETE", "", "ending the sandbox")
        except SandboxNotFound:
            return False
        return True

    def refresh(self) -> SandboxInfo:
        """How it is now."""
        return self._heard((self._door.ask("GET", "", "looking at the sandbox")).json())

    def stop(self) -> SandboxInfo:
        """Ends its processes; its files stay."""
        return self._act("stop")

    def start(self) -> SandboxInfo:
        """Makes a stopped one run again."""
        return self._act("start")

    def restart(self) -> SandboxInfo:
        """Stops it and starts it."""
        # Twice is not once: what was started in between would be lost.
        return self._act("restart", repeat=False)

    def pause(self) -> SandboxInfo:
        """Lets its processes, and its clocks, stand still."""
        return self._act("pause")

    def resume(self, timeout: int | None = None) -> SandboxInfo:
        """Lets a paused one go on, for so many seconds, or for what was left."""
        return self._act("resume", {"timeout": timeout})

    def set_timeout(self, timeout: int) -> SandboxInfo:
        """Gives it so many seconds from now on; 0 is without end."""
        return self._act("timeout", {"timeout": timeout})

    def keep_alive(self) -> SandboxInfo:
        """Counts as a use: it is not idle."""
        return self._act("keepalive")

    def _act(self, act: str, told: dict[str, Any] | None = None, *, repeat: bool = True) -> SandboxInfo:
        # But for one, each of them says how it is to be, and may be said twice.
        answer = self._door.ask("POST", f"/{act}", f"{act} of the sandbox", json=told or {}, repeat=repeat)
        return self._heard(answer.json())

    def _heard(self, told: dict[str, Any]) -> SandboxInfo:
        self.info = parse(SandboxInfo, told)
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
        """Changes it while it runs; what is left out stays. `metadata` replaces all that there is."""
        told = {
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
        answer = self._door.ask("PATCH", "", "changing the sandbox", json=told, repeat=True)
        return self._heard(answer.json())

    def set_network(
        self, network: Network | None = None, *, allow: Sequence[str] = (), deny: Sequence[str] = ()
    ) -> SandboxInfo:
        """Sets its network, and what it may reach: IPv4 addresses or blocks, with `:port` perhaps."""
        told = {"network": network, "allow": list(allow), "deny": list(deny)}
        answer = self._door.ask("PUT", "/network", "setting the network", json=told)
        return self._heard(answer.json())

    def ports(self) -> builtins.list[Port]:
        """What listens in it."""
        return [parse(Port, one) for one in (self._door.ask("GET", "/ports", "listing ports")).json()]

    def metrics(self, start: datetime | None = None, end: datetime | None = None) -> builtins.list[Sample]:
        """What it used in the last hour, oldest first, and uses now."""
        query = {"start": start and int(start.timestamp()), "end": end and int(end.timestamp())}
        answer = self._door.ask("GET", "/metrics", "reading metrics", query=query)
        return [parse(Sample, one) for one in answer.json()]

    def events(self, after: int = 0) -> builtins.list[Event]:
        """What happened to it, after the event of a number; at most 100."""
        answer = self._door.ask("GET", "/events", "listing events", query={"after": after})
        return [parse(Event, one) for one in answer.json()]

    def forward(self, port: int, local_port: int = 0, *, host: str = "127.0.0.1") -> Forward:
        """Makes a port of the sandbox one of this machine, until it is closed: `with sandbox.forward(8000) as forward`
        has a `forward.url`. Servers that listen on the sandbox's loopback alone are reached too.

        Args:
            port: In the sandbox.
            local_port: On this machine; a free one if nothing is said.
            host: Where this machine listens.
        """
        self.refresh()
        return Forward.open(self._door, port, local_port, host)
