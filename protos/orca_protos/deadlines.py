"""Bounds of every wait between master, controllers and ranks, in seconds.

A controller bounds the time of its ranks; the master bounds the time of the controller. The master's bound is always
the controller's plus a margin, so that the controller, which knows which rank is silent, responds first.
"""

from __future__ import annotations

from dataclasses import dataclass

MARGIN_SECONDS = 15.0
"""The master's margin: time for the controller to unload or replace its ranks and to respond."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Timeout of one call: `worker` is the controller's timeout for its ranks."""

    worker: float

    @property
    def master(self) -> float:
        """Seconds that the master waits for the controller."""
        return self.worker + MARGIN_SECONDS


PREPARE = Bound(30.0)
CONNECT_SECONDS = 4.0
"""Timeout of a connection of a process group over gloo, which tries five times. The sum is below PREPARE, so that a
rank whose neighbour has died meanwhile can be prepared for the next epoch."""
ALLOCATE = Bound(120.0)
"""Includes writing to the pools, so that their pages exist, and capturing the decode graphs."""
ADAPTER_FILES_SECONDS = 60.0
"""How long a controller may read the files of one adapter."""
ADAPTER_COPY_SECONDS = 60.0
"""How long a rank may remove adapters and load one. Iterations behind it have this time beyond their bound."""
LOAD_SILENCE = Bound(300.0)
"""Between two load messages of a rank, which may wait for another process's build of the CPU kernels and then build
them itself (BUILD_SECONDS in orca_kernels/cpu/library.py, twice)."""


def form(group_timeout: float) -> Bound:
    """Return the bound of `Form`, whose ranks wait up to `group_timeout` seconds for each other."""
    return Bound(30.0 + group_timeout)


def warmup(timeout: float) -> Bound:
    """Return the bound of `Warmup`, whose iteration may take `timeout` seconds."""
    return Bound(30.0 + timeout)


def change_adapters(timeout: float) -> Bound:
    """Return the bound of `ChangeAdapters` without the files' first reading: iterations before may take `timeout`."""
    return Bound(ADAPTER_COPY_SECONDS + timeout)


PING_INTERVAL = 5.0
"""Seconds without a reply to a cold command after which a rank's reader thread is asked for a sign of life."""
LIFE_SECONDS = 10.0
"""How long the reader thread may then take. A stopped rank is killed; one that loads or connects slowly is not. Before
its first reply a process may import torch, as slowly as its disk is; it is only killed if a signal has stopped it."""
PING_SECONDS = 3.0
"""How long a rank's reader thread may take to answer; a stopped rank is replaced by a new process."""
UNLOAD_SECONDS = 5.0
"""How long a rank may take to free its model before a load; a stuck rank is replaced by a new process."""
NEIGHBOUR_FORMED_SECONDS = 30.0
"""How long a stream to a controller waits for that controller's own `Form` to end."""
SHUTDOWN_SECONDS = 2.0
COLD_FAULTS_SECONDS = 2.0
"""How long a controller waits for the cause after one of its ranks reported a consequence during a cold call."""
FAULTS_SECONDS = COLD_FAULTS_SECONDS + 1.0
"""How long the master waits for the cause after reports of consequences only."""
