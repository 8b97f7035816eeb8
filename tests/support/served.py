"""`orca serve` as a process."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ORCA = (sys.executable, "-P", "-m", "orca_master.cli")
"""-P, like the console script: the current folder is not in the module path."""
START_SECONDS = 120
READY = re.compile(r"ready: \S+ on (http://\S+)")
START_DETAILS = ("worker listens on unix:", "rank 0: ", "pipeline local-0 has ", "pipeline local-0 serves: epoch 1")
"""In lines of a start that need `--log-level debug`."""


class Served:
    """A running server: `url` is set when the server is ready, `log` has the lines so far.

    `prefix`: a command that becomes the server by exec(3). `spare_ranks`: spares start after some seconds, so that the
    number of processes depends on the time.
    """

    def __init__(
        self, arguments: list[str], cwd: Path | None = None, prefix: Sequence[str] = (), spare_ranks: bool = False
    ) -> None:
        options = ["--port", "0"] if spare_ranks else ["--port", "0", "--no-spare-ranks"]
        self.process = subprocess.Popen(
            [*prefix, *ORCA, "serve", *arguments, *options],
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        self.log: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def master(self) -> int:
        """Process id of the master, the child of `orca serve` that runs the same program."""
        command = Path(f"/proc/{self.process.pid}/cmdline").read_bytes()
        (pid,) = (
            int(pid)
            for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if Path(f"/proc/{pid}/cmdline").read_bytes() == command
        )
        return pid

    def has_other_master(self, before: int) -> bool:
        """Return True if a master runs that is not the process `before`."""
        try:
            return self.master != before and Path(f"/proc/{self.master}").exists()
        except ValueError:
            return False

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            if ready := READY.search(line):
                self.url = ready[1]
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
def serve(
    model: Path, *options: str, cwd: Path | None = None, prefix: Sequence[str] = (), spare_ranks: bool = False
) -> Iterator[Served]:
    """Yield a ready server, started in the folder `cwd` and stopped at the end of the block. The rest: see Served."""
    served = Served([str(model), *options], cwd, prefix, spare_ranks)
    try:
        served.wait_ready()
        yield served
    finally:
        if served.process.poll() is None:
            served.stop()


def value(metrics: str, name: str) -> float:
    """Return the value of the metric `orca:name`, which has only the model's label."""
    (text,) = re.findall(rf'^orca:{name}{{model_name="[^"]+"}} (\S+)$', metrics, re.MULTILINE)
    return float(text)


def descendants(pid: int) -> set[int]:
    """Return the process ids of all descendants."""
    pids: set[int] = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            for child in map(int, children.read_text().split()):
                pids |= {child} | descendants(child)
    return pids


def worker_pid(served: Served, partition: int, victim: str) -> int:
    """Return the controller or first rank of a partition, found by the worker's socket name."""
    for pid in descendants(served.process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if f"worker-{partition}.sock" in Path(f"/proc/{pid}/cmdline").read_text():
                return pid if victim == "controller" else min(descendants(pid))
    raise AssertionError(f"no worker {partition}")


def alive(pid: int) -> bool:
    """Return True if a process is running and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Return True as soon as `condition()` holds, False after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
