"""What the programs share."""

import time


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
        assert error is not None, f"{self.kind} was expected, and nothing happened"
        assert isinstance(error, self.kind), f"{error!r} is no {self.kind}"
        for word in self.words:
            assert word in str(error), f"{str(error)!r} does not say {word!r}"
        self.error = error
        return True


def until(what, condition, seconds=60):
    """Waits for something to become true; what it became."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited for {what}")


# Leaves a megabyte of the file system at /run, which is in memory and small.
FILL = "fallocate -l $(($(df --output=avail -B1 /run | tail -1) - 1048576)) /run/filler"
