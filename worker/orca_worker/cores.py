"""Number of threads, idle spinning and core pinning of each rank of a worker. Imports no torch.

The controller decides before it starts a rank, so that OMP_NUM_THREADS reaches every OpenMP library of the process:
torch may bring its own copy beside the one that the CPU kernels link. Values that the user has set take precedence.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from orca_worker.cgroup import cpu_quota
from orca_worker.numa import numa_nodes

THREADS = "OMP_NUM_THREADS"
SPINS = {"GOMP_SPINCOUNT": "5000"}
"""Rounds that an idle libgomp thread spins before it sleeps: 0.1 to 0.25 ms, longer than most gaps between kernels.

libgomp's default, 300,000, takes milliseconds. On a busy machine they block the core that the awaited thread needs
(benchmarks/idle_threads.py).
"""
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""If the user has set one of these variables, SPINS does not apply."""


@dataclass(frozen=True, slots=True)
class Processors:
    """CPU resources of a worker.

    `affinity`: cores of its affinity mask; `quota`: CPU quota of its control group, None without one; `nodes`: cores of
    each NUMA node by its number, {} if they are unknown.
    """

    affinity: Set[int]
    quota: float | None
    nodes: Mapping[int, Set[int]] = field(default_factory=dict)

    @classmethod
    def of_this_process(cls) -> Processors:
        """Read affinity mask and quota of this process, and the nodes of the machine."""
        return cls(os.sched_getaffinity(0), cpu_quota(), numa_nodes())

    @property
    def threads(self) -> int:
        """Number of threads that can run in parallel without throttling (a fractional quota is rounded up)."""
        return len(self.affinity) if self.quota is None else min(len(self.affinity), math.ceil(self.quota))

    @property
    def by_node(self) -> list[int]:
        """Cores of the mask, node after node: those of one node may not have successive numbers."""
        return sorted(self.affinity, key=lambda core: (self.nodes_of([core]), core))

    def nodes_of(self, cores: Iterable[int]) -> list[int]:
        """Return the numbers of the NUMA nodes of some cores."""
        wanted = set(cores)
        return [node for node, own in self.nodes.items() if wanted & own]


@dataclass(frozen=True, slots=True)
class RankSetting:
    """Start settings of one rank: environment, cores to pin to (empty: not pinned), and both as text for the log."""

    description: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()


def rank_setting(
    processors: Processors, rank: int, num_ranks: int, may_pin: bool, environment: Mapping[str, str]
) -> RankSetting:
    """Return the setting of rank `rank` of the `num_ranks` that share `processors`.

    Threads are divided equally, with at least one per rank; the first ranks get one more if the division has a rest.
    `may_pin`: no other program computes on the cores, so each rank is pinned to its own, node after node: the kernel
    takes the rank's memory from the node of the core that first writes to it. Under a quota, or with fewer cores than
    ranks, no rank is pinned.
    `environment`: the environment of the rank without these settings.
    """
    spins = {} if any(environment.get(name) for name in WAITING) else SPINS
    if environment.get(THREADS):
        return RankSetting(f"{THREADS}={environment[THREADS]} is set", spins)
    each, left_over = divmod(processors.threads, num_ranks)
    threads = max(1, each + (rank < left_over))
    cores: tuple[int, ...] = ()
    if may_pin and processors.quota is None and each > 0:
        first = rank * each + min(rank, left_over)
        cores = tuple(processors.by_node[first : first + threads])
    where = f" on {_listed('core', cores)}" if cores else ""
    if cores and len(processors.nodes) > 1:
        where += f" of {_listed('NUMA node', processors.nodes_of(cores))}"
    quota = "no CPU quota" if processors.quota is None else f"CPU quota {processors.quota:g}"
    description = (
        f"{_count(threads, 'thread')}{where} (affinity {_count(len(processors.affinity), 'core')}, {quota}, "
        f"{_count(num_ranks, 'rank')})"
    )
    return RankSetting(description, {THREADS: str(threads), **spins}, cores)


def _listed(noun: str, numbers: Sequence[int]) -> str:
    return f"{noun}{'s' * (len(numbers) > 1)} {','.join(map(str, numbers))}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
