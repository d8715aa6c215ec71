"""Packets are really stopped. Somebody at 1.1.1.1 and at 9.9.9.9 greets whoever gets there."""

from e2b import CommandExitException, Sandbox
from expect import same

EVERYBODY = ["1.1.1.1", "9.9.9.9"]


def reached(sandbox):
    def greeted(address):
        try:
            line = f"timeout 5 bash -c 'head -c 5 < /dev/tcp/{address}/80'"
            return sandbox.commands.run(line).stdout == "hello"
        except CommandExitException:
            return False

    return [address for address in EVERYBODY if greeted(address)]


with Sandbox.create(timeout=100) as sandbox:
    same(reached(sandbox), EVERYBODY)
    sandbox.update_network({"deny_out": ["1.1.1.1"]})
    same(reached(sandbox), ["9.9.9.9"])
    sandbox.update_network({"allow_out": ["1.1.1.1"], "deny_out": ["0.0.0.0/0"]})
    same(reached(sandbox), ["1.1.1.1"])
    sandbox.update_network({})
    same(reached(sandbox), EVERYBODY)
with Sandbox.create(timeout=100, allow_internet_access=False) as sandbox:
    same(reached(sandbox), [])
asked = {"allow_out": ["9.9.9.0/24"], "deny_out": ["0.0.0.0/0"]}
with Sandbox.create(timeout=100, network=asked) as sandbox:
    same(reached(sandbox), ["9.9.9.9"])
