"""CPU time of processes, read from proc(5), and that of a fixed computation.

A cost per request that rises has two possible causes: the program does more, or the machine does less. The time of the
fixed computation has only the second.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from orca_bench.processes import GONE
from orca_bench.resources import role_of

TICKS = os.sysconf("SC_CLK_TCK")
FIXED_COUNT = 100_000


class CpuTimes:
    """The CPU time that the processes of a server spend between two observations, by role (`resources.role_of`)."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}

    def since_last(self, server: Mapping[str, int]) -> dict[str, float]:
        """Return the seconds of each role since the last call, or since a process began that is new.

        `server`: process ids by name, see `processes`. The time between the last call and a process's end is missing.
        """
        spent = defaultdict[str, float](float)
        now: dict[int, float] = {}
        for name, pid in server.items():
            try:
                now[pid] = cpu_seconds(pid)
            except GONE:
                continue
            spent[role_of(name)] += now[pid] - self._before.get(pid, 0.0)
        self._before = now
        return dict(spent)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process; raise FileNotFoundError or ProcessLookupError if it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def fixed_computation() -> float:
    """Return the milliseconds of CPU time that this thread needs for a fixed computation of about 5 ms."""
    begin = time.thread_time()
    total = 0
    for number in range(FIXED_COUNT):
        total += number
    return 1000 * (time.thread_time() - begin)
