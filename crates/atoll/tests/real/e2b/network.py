"""Network rules block packets. Servers at 1.1.1.1 and 9.9.9.9 greet every client that connects."""

from e2b import CommandExitException, Sandbox
from expect import same

ALL = ["1.1.1.1", "9.9.9.9"]


def reached(sandbox):
    def greeted(address):
        try:
            line = f"timeout 5 bash -c 'head -c 5 < /dev/tcp/{address}/80'"
            return sandbox.commands.run(line).stdout == "hello"
        except CommandExitException:
            return False

    return [address for address in ALL if greeted(address)]


with Sandbox.create(timeout=100) as sandbox:
    same(reached(sandbox), ALL)
    sandbox.update_network({"deny_out": ["1.1.1.1"]})
    same(reached(sandbox), ["9.9.9.9"])
    sandbox.update_network({"allow_out": ["1.1.1.1"], "deny_out": ["0.0.0.0/0"]})
    same(reached(sandbox), ["1.1.1.1"])
    sandbox.update_network({})
    same(reached(sandbox), ALL)
with Sandbox.create(timeout=100, allow_internet_access=False) as sandbox:
    same(reached(sandbox), [])
rules = {"allow_out": ["9.9.9.0/24"], "deny_out": ["0.0.0.0/0"]}
with Sandbox.create(timeout=100, network=rules) as sandbox:
    same(reached(sandbox), ["9.9.9.9"])
