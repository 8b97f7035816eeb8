"""`orca serve` as a process, as users start it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ORCA = (sys.executable, "-P", "-m", "orca_master.cli")
"""As the console script: the current folder is not in the module path."""
START_SECONDS = 120
READY = re.compile(r"ready: \S+ on (http://\S+)")


class Served:
    """A running server: `url` once it is ready, `log` so far."""

    def __init__(self, arguments: list[str], cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [*ORCA, "serve", *arguments, "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        self.log: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            if found := READY.search(line):
                self.url = found[1]
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> None:
        assert self._ready.wait(START_SECONDS), self.log
        assert self.url, self.log

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@contextlib.contextmanager
def serve(model: Path, *options: str, cwd: Path | None = None) -> Iterator[Served]:
    """Yield a ready server, started in the folder `cwd`; ended when the block is left."""
    served = Served([str(model), *options], cwd)
    try:
        served.wait_ready()
        yield served
    finally:
        if served.process.poll() is None:
            served.stop()


def value(metrics: str, name: str) -> float:
    """Return the value of the one metric `orca:name` without labels beside the model's."""
    (found,) = re.findall(rf'^orca:{name}{{model_name="[^"]+"}} (\S+)$', metrics, re.MULTILINE)
    return float(found)


def descendants(pid: int) -> set[int]:
    """Process ids of all children, their children, and so on."""
    found: set[int] = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found |= {child} | descendants(child)
    return found


def alive(pid: int) -> bool:
    """Whether a process still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether `condition` comes true within a bound."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
