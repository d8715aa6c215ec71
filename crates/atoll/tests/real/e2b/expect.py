"""Assertions and waits of the test programs."""

import time


def same(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


def raises(kind, *words):
    """A context in which an error of this class is expected, with a message that contains the words."""
    return _Raises(kind, words)


class _Raises:
    def __init__(self, kind, words):
        self.kind, self.words = kind, words

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        assert error is not None, f"{self.kind} was expected, and nothing happened"
        assert isinstance(error, self.kind), f"{error!r} is no {self.kind}"
        for word in self.words:
            assert word in str(error), f"{str(error)!r} does not say {word!r}"
        self.error = error
        return True


def until(description, condition, seconds=60):
    """Polls until the condition is truthy, and returns its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited for {description}")


# Command that leaves 1 MiB free on /run, a small tmpfs.
FILL = "fallocate -l $(($(df --output=avail -B1 /run | tail -1) - 1048576)) /run/filler"
