"""What the programs share."""

import json
import os
import time
import urllib.request


def same(found, wanted):
    assert found == wanted, f"{found!r} is not {wanted!r}"


def raises(kind, *words):
    """A block that must fail so; its message has these words."""
    return _Raises(kind, words)


class _Raises:
    def __init__(self, kind, words):
        self.kind, self.words = kind, words

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        assert error is not None, f"{self.kind.__name__} was expected, and nothing happened"
        assert isinstance(error, self.kind), f"{error!r} is no {self.kind.__name__}"
        for word in self.words:
            assert word in str(error), f"{str(error)!r} does not say {word!r}"
        return True


def until(what, condition, seconds=20):
    """Waits for something to become true; what it became."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited for {what}")


def small():
    """A sandbox with little memory, made through Atoll's own API; its id."""
    body = json.dumps({"memoryMB": 128, "timeout": 60}).encode()
    headers = {"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/sandboxes", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())["sandboxID"]
