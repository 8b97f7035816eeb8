"""`WorkerPool`: workers shared by many tests; they outlive a test's engine, like workers of a cluster their master.

A new master uses a higher epoch and loads its own model, but the rank processes are reused (docs/contracts.md, section
4), so each imports torch only once. For tests that leave the workers alive; a test that kills, stops or replaces a
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
    """Workers on Unix sockets, started on first use. One test at a time may use them.

    `log`: file for the logs of workers and ranks; None: this process's standard error.
    """

    def __init__(self, log: TextIO | None = None) -> None:
        self._log = log
        self._folder = tempfile.TemporaryDirectory(prefix="orca-pool-")
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def addresses(self, count: int, tensor_parallel_size: int = 1) -> list[str]:
        """Return the addresses of `count` workers; each tensor-parallel size has its own workers."""
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
