"""What the programs that measure through clients share: a server as it comes, the machine's floor, and the table."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request


def percentile(samples, percent):
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


class Server:
    """A server of default configuration, with a data directory of its own."""

    def __init__(self, atoll):
        self.scratch = tempfile.TemporaryDirectory(prefix="atoll-bench-")
        data = pathlib.Path(self.scratch.name) / "data"
        data.mkdir(mode=0o700)
        self.data = data
        usual = pathlib.Path(os.environ.get("ATOLL_DATA_DIR") or "/var/lib/atoll")
        self.environment = os.environ | {
            "ATOLL_TEMPLATES_DIR": os.environ.get("ATOLL_TEMPLATES_DIR") or str(usual / "templates"),
            "ATOLL_DATA_DIR": str(data),
        }
        self.atoll = pathlib.Path(atoll).resolve()
        self.log = data.with_name("log")
        words = ["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "off", "--on-exit", "destroy"]
        self.process = subprocess.Popen(
            [self.atoll, *words, "--data-dir", data],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log.open("wb"),
            text=True,
        )
        for line in self.process.stdout:
            if found := re.match(r"serving\s+(http://\S+)", line):
                self.url = found[1]
                return
        sys.exit(f"the server did not start:\n{self.log.read_text()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.scratch.cleanup()

    def variables(self):
        words = ["e2b", "env", "--url", self.url, "--data-dir", self.data]
        said = subprocess.run([self.atoll, *words], capture_output=True, text=True, check=True)
        return dict(line.removeprefix("export ").split("=", 1) for line in said.stdout.splitlines())

    def filled(self, warm=16):
        """Waits until so many sandboxes are ready, as they are on a server that is not overrun."""
        while True:
            with urllib.request.urlopen(f"{self.url}/readyz") as answer:
                if json.load(answer)["pool"]["warm"] >= warm:
                    return
            time.sleep(0.01)

    def memory(self, name):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def logged(self, route):
        """What the log says answers of a route took."""
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line["ms"] for line in lines if line.get("span", {}).get("route") == route and "ms" in line]

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        # What its keeper leaves is taken away when that is gone.
        for _ in range(100):
            subprocess.run([self.atoll, "gc"], env=self.environment, capture_output=True)
            if not any((self.data / "sandboxes").glob("*")):
                break
            time.sleep(0.05)


def floor():
    samples = []
    for _ in range(300):
        begin = time.perf_counter()
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        samples.append((time.perf_counter() - begin) * 1000)
    return samples


def show(rows):
    """Figures with their bars: name, p50, p99, the bar, and whether it is met."""
    width = max(len(row[0]) for row in rows)
    for figure, p50, p99, bar, met in rows:
        judged = ("met" if met else "MISSED") if bar else ""
        print(f"{figure:<{width}}  {p50:>10}  {p99:>10}  {bar:<24}{judged}".rstrip())
