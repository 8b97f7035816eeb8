"""`WorkerPool`: workers that outlive the engines of many tests, as they outlive their masters in a cluster.

A new master takes a higher epoch and loads its own model; the rank processes stay (docs/contracts.md, section 4), so
torch is imported once for each of them. For tests that leave the workers alive; a test that kills, stops or replaces a
worker starts its own (`engines.worker_processes`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TextIO

SCRIPT = Path(__file__).parent / "pooled_worker.py"


class WorkerPool:
    """Workers on Unix sockets, started when they are first asked for. One test at a time uses them.

    `log` gets what they and their ranks log; None: this process's standard error.
    """

    def __init__(self, log: TextIO | None = None) -> None:
        self._log = log
        self._folder = tempfile.TemporaryDirectory(prefix="orca-pool-")
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def addresses(self, count: int, tensor_parallel_size: int = 1) -> list[str]:
        """Return the addresses of `count` workers, which are kept for this tensor-parallel size."""
        addresses = [f"unix:{self._folder.name}/{tensor_parallel_size}-{index}.sock" for index in range(count)]
        for address in addresses:
            if address not in self._workers or self._workers[address].poll() is not None:
                self._workers[address] = self._start(address)
        return addresses

    def pid(self, address: str) -> int:
        """Return the process id of a worker's controller."""
        return self._workers[address].pid

    def close(self) -> None:
        """End all workers and their ranks."""
        for worker in self._workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
        for worker in self._workers.values():
            try:
                worker.wait(15)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self._folder.cleanup()

    def _start(self, address: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, SCRIPT, "--listen", address],
            stdin=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
