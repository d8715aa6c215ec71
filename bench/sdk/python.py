"""Figures of the SDK for Python, as JSON lines: how long its import takes, and a command over a warm client.

ATOLL_URL and ATOLL_API_KEY say which server; PYTHONPATH=sdks/python/src where the SDK is. It needs httpx and websockets.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable

IMPORTS, RUNS, WARM = 15, 1000, 50
#: Bars of the figures, in milliseconds.
BARS = {"python_import": 250.0, "python_run": 4.0, "python_run_async": 4.0}


def tell(figure: str, milliseconds: list[float]) -> None:
    times = sorted(milliseconds)
    at: Callable[[float], float] = lambda part: round(times[min(len(times) - 1, int(part * len(times)))], 3)  # noqa: E731
    print(
        json.dumps(
            {"figure": figure, "unit": "ms", "p50": at(0.5), "p99": at(0.99), "n": len(times), "bar": BARS[figure]}
        )
    )


def imports() -> list[float]:
    program = "import time; begin = time.perf_counter(); import atoll; print((time.perf_counter() - begin) * 1e3)"
    # The first one compiles.
    ran = [subprocess.run([sys.executable, "-c", program], check=True, capture_output=True) for _ in range(IMPORTS + 1)]
    return [float(one.stdout) for one in ran[1:]]


def runs() -> list[float]:
    from atoll import Sandbox

    times = []
    with Sandbox.create(timeout=600) as sandbox:
        for _ in range(WARM + RUNS):
            begin = time.perf_counter()
            sandbox.commands.run("true")
            times.append((time.perf_counter() - begin) * 1e3)
    return times[WARM:]


async def runs_async() -> list[float]:
    from atoll import AsyncClient, AsyncSandbox

    times = []
    async with AsyncClient() as client:
        async with await AsyncSandbox.create(timeout=600, client=client) as sandbox:
            for _ in range(WARM + RUNS):
                begin = time.perf_counter()
                await sandbox.commands.run("true")
                times.append((time.perf_counter() - begin) * 1e3)
    return times[WARM:]


if __name__ == "__main__":
    tell("python_import", imports())
    tell("python_run", runs())
    tell("python_run_async", asyncio.run(runs_async()))
