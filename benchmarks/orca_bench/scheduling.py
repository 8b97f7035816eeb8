"""`Scheduling`: what a driver asks of a scheduler, and ORCA's own behind it. The baselines implement the same.

Drivers are simulator.py and on_engine.py. They offer requests, send the batches that come out, and hand the tokens
back; so two schedulers differ in nothing but their decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import LEDGERS, blocks_for
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler, SchedulerConfig

UNBOUNDED = 1 << 60


class MisfitError(Exception):
    """A request, or a batch, that could never be admitted."""


class Scheduling(Protocol):
    """Decides which requests' tokens are computed together. Pure: no clock, no I/O."""

    def add(self, request: Request) -> None:
        """Take a request that arrived; raise MisfitError if it can never run."""

    def next_batch(self) -> Batch | None:
        """Dispatches one more iteration, or returns None if nothing may run before the next `commit` or `add`."""

    def commit(self, batch: Batch, tokens: list[int]) -> list[Request]:
        """Take an iteration's tokens back, iterations in the order of their dispatch.

        Return a request for every token that now reaches its client, in order.
        """


@dataclass(frozen=True, slots=True)
class OrcaSetup:
    """ORCA's knobs: `num_partitions` stages per pipeline, `replicas` pipelines, `slots` K/V slots each."""

    num_partitions: int
    max_batch_size: int
    slots: int
    replicas: int = 1
    token_budget: int | None = 2048
    admission: str = "reserve"
    balanced: bool = True


class OrcaScheduling:
    """The master's `Scheduler` and ledger as they are, driven as `EngineMaster` does. Raises MisfitError."""

    def __init__(self, setup: OrcaSetup) -> None:
        if setup.slots < BLOCK_SIZE:
            raise MisfitError(f"{setup.slots} slots are less than one block of {BLOCK_SIZE}")
        self._slots = setup.slots // BLOCK_SIZE * BLOCK_SIZE
        self._pool = RequestPool(UNBOUNDED, UNBOUNDED)
        self._scheduler = Scheduler(
            SchedulerConfig(setup.max_batch_size, setup.num_partitions, setup.token_budget, setup.balanced), self._pool
        )
        self._pipelines = [str(index) for index in range(setup.replicas)]
        for name in self._pipelines:
            self._scheduler.add_pipeline(name, LEDGERS[setup.admission](setup.slots // BLOCK_SIZE))

    def add(self, request: Request) -> None:
        """See Scheduling."""
        check_fits(request, self._slots)
        self._pool.add(request)

    def next_batch(self) -> Batch | None:
        """See Scheduling: the pipeline with the fewest iterations in flight first."""
        for name in sorted(self._pipelines, key=self._scheduler.in_flight):
            if proposal := self._scheduler.select(name):
                return self._scheduler.dispatch(name, proposal)
        return None

    def commit(self, batch: Batch, tokens: list[int]) -> list[Request]:
        """See Scheduling."""
        return [request for _, request in self._scheduler.commit(batch, tokens)]


def check_fits(request: Request, slots: int) -> None:
    """Raise MisfitError for a request that needs more slots than there are."""
    if blocks_for(request.max_tokens) * BLOCK_SIZE > slots:
        raise MisfitError(f"a request of {request.max_tokens} tokens does not fit into {slots} slots")
