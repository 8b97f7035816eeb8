"""The threads of each rank of a worker, how they wait, and the cores that they are pinned to. No torch here.

The controller decides before it starts a rank, so that OMP_NUM_THREADS reaches every OpenMP library of the rank: torch
may bring one of its own beside the one that the CPU kernels are linked to. A number that the user has set wins.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from orca_worker.cgroup import cpu_quota

THREADS = "OMP_NUM_THREADS"
SPINS = {"GOMP_SPINCOUNT": "5000"}
"""Rounds that an idle thread of libgomp spins before it sleeps: 0.1 to 0.25 ms, longer than most gaps between kernels.

libgomp's own 300,000 are milliseconds. On a busy machine a thread spends them on the core that the thread it waits for
needs (benchmarks/idle_threads.py).
"""
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""With one of them the user has said how idle threads wait."""


@dataclass(frozen=True, slots=True)
class Processors:
    """What a worker may use: the cores of its affinity mask, and the CPU quota of its control group (None: none)."""

    affinity: Set[int]
    quota: float | None

    @classmethod
    def of_this_process(cls) -> Processors:
        """Read both."""
        return cls(os.sched_getaffinity(0), cpu_quota())

    @property
    def threads(self) -> int:
        """Threads that can compute at the same time without being throttled (but for a fraction of a CPU)."""
        return len(self.affinity) if self.quota is None else min(len(self.affinity), math.ceil(self.quota))


@dataclass(frozen=True, slots=True)
class RankSetting:
    """How one rank is started: environment, the cores it is pinned to (none: not pinned), and both in words."""

    description: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()


def rank_setting(
    processors: Processors, rank: int, num_ranks: int, may_pin: bool, environment: Mapping[str, str]
) -> RankSetting:
    """Return the setting of the rank `rank` of the `num_ranks` that share `processors`.

    Each gets an equal part of the threads, the first ones one more if some are left over, and at least one.
    `may_pin`: the ranks have the cores for themselves, so each is pinned to its part. Then its threads stay on their
    cores, and its memory on the NUMA node that reads it. Under a quota, or with fewer cores than ranks, none is pinned.
    `environment`: what the rank would start with otherwise.
    """
    spins = {} if any(environment.get(name) for name in WAITING) else SPINS
    if environment.get(THREADS):
        return RankSetting(f"{THREADS}={environment[THREADS]} is set", spins)
    each, left_over = divmod(processors.threads, num_ranks)
    threads = max(1, each + (rank < left_over))
    cores: tuple[int, ...] = ()
    if may_pin and processors.quota is None and each > 0:
        first = rank * each + min(rank, left_over)
        cores = tuple(sorted(processors.affinity)[first : first + threads])
    where = f" on core{'s' * (len(cores) > 1)} {','.join(map(str, cores))}" if cores else ""
    quota = "no CPU quota" if processors.quota is None else f"CPU quota {processors.quota:g}"
    description = (
        f"{_count(threads, 'thread')}{where} (affinity {_count(len(processors.affinity), 'core')}, {quota}, "
        f"{_count(num_ranks, 'rank')})"
    )
    return RankSetting(description, {THREADS: str(threads), **spins}, cores)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
