"""`Scheduling`: the scheduler interface of the drivers, and its implementation with ORCA's scheduler.

The drivers simulator.py and on_engine.py add requests, run the batches, and commit the tokens in the same way for ORCA
and for the baselines, so that only the scheduling decisions differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import LEDGERS, blocks_for
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig

UNBOUNDED = 1 << 60


class MisfitError(Exception):
    """A request or batch that can never be admitted."""


class Scheduling(Protocol):
    """Selects the requests of each iteration. Pure: no clock, no I/O."""

    def add(self, request: Request) -> None:
        """Add an arrived request; raise MisfitError if it can never run."""

    def next_batch(self) -> Batch | None:
        """Dispatch an iteration; return None if no request can run before the next `commit` or `add`."""

    def commit(self, batch: Batch, tokens: list[int]) -> list[Request]:
        """Record the tokens of an iteration; called in the order of dispatch.

        Return one entry per token that now reaches its client: the request, in order.
        """


@dataclass(frozen=True, slots=True)
class OrcaSetup:
    """Options of ORCA: `num_partitions` stages per pipeline, `replicas` pipelines with `slots` K/V slots each."""

    num_partitions: int
    max_batch_size: int
    slots: int
    replicas: int = 1
    token_budget: int | None = 2048
    admission: str = "reserve"
    balanced: bool = True


class OrcaScheduling:
    """The master's `Scheduler` and ledger, called as by `EngineMaster`, but without its spare iteration.

    Raises MisfitError.
    """

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
        """See Scheduling; the pipeline with the fewest iterations in flight goes first."""
        for name in sorted(self._pipelines, key=self._scheduler.in_flight):
            if proposal := self._scheduler.select(name):
                return self._scheduler.dispatch(name, proposal)
        return None

    def commit(self, batch: Batch, tokens: list[int]) -> list[Request]:
        """See Scheduling."""
        return [request for _, request in self._scheduler.commit(batch, tokens)]


def check_fits(request: Request, slots: int) -> None:
    """Raise MisfitError for a request that needs more than `slots`."""
    if blocks_for(request.max_tokens) * BLOCK_SIZE > slots:
        raise MisfitError(f"a request of {request.max_tokens} tokens does not fit into {slots} slots")
