"""Bounds of every wait between master, controllers and ranks, in seconds.

A controller bounds how long its ranks may take; the master bounds how long the controller may take. The master's bound
is always the controller's plus a margin, so that the controller, which knows which rank is silent, answers first.
"""

from __future__ import annotations

from dataclasses import dataclass

MARGIN_SECONDS = 15.0
"""Time for the controller to unload or end its ranks, start new ones and answer: how much later the master gives up."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Longest wait for one call: `worker` is that of a controller for its ranks."""

    worker: float

    @property
    def master(self) -> float:
        """Seconds that the master waits for the controller."""
        return self.worker + MARGIN_SECONDS


PREPARE = Bound(30.0)
ALLOCATE = Bound(120.0)
"""The pools are written to, so that their memory exists, and iterations of increments are recorded."""
LOAD_SILENCE = Bound(300.0)
"""Between two messages about a load, from each rank: it may wait for another process that compiles the CPU kernels, and
compile them itself (BUILD_SECONDS in orca_kernels/cpu/library.py, for each of the two)."""


def form(group_timeout: float) -> Bound:
    """`Form`, whose ranks wait up to `group_timeout` seconds for each other."""
    return Bound(30.0 + group_timeout)


def warmup(timeout: float) -> Bound:
    """`Warmup`, whose iteration may take `timeout` seconds."""
    return Bound(30.0 + timeout)


UNLOAD_SECONDS = 5.0
"""How long a rank may take to forget its model before a load; a rank that is stuck is replaced by a new process."""
NEIGHBOUR_FORMED_SECONDS = 30.0
"""How long a stream to a controller waits for that controller's own `Form` to end."""
SHUTDOWN_SECONDS = 2.0
COLD_FAULTS_SECONDS = 2.0
"""How long a controller waits for the cause after one of its ranks reported a consequence during a cold call."""
FAULTS_SECONDS = COLD_FAULTS_SECONDS + 1.0
"""How long the master waits for the cause after it heard of consequences only."""
