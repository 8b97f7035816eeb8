"""`Aligned`: iteration-level scheduling without selective batching, so that a batch must be a regular tensor.

Admission is ORCA's: by arrival, with all slots of a request reserved (Algorithm 1). Requests are grouped
by the shape of their next computation, and a batch contains requests of only one group. The two subclasses
phase_aligned.py and cell_batching.py define the shape and choose the group.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.scheduling.batch import Batch, Proposal, Selection
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request import Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig

from orca_bench.scheduling import UNBOUNDED, check_fits

PIPELINE = "0"


class Aligned(abc.ABC):
    """A `Scheduling` with at most `num_in_flight` batches of `max_batch_size` at a time."""

    def __init__(self, max_batch_size: int, num_in_flight: int, slots: int) -> None:
        self._slots = slots // BLOCK_SIZE * BLOCK_SIZE
        self._max_batch_size = max_batch_size
        self._num_in_flight = num_in_flight
        self._pool = RequestPool(UNBOUNDED, UNBOUNDED)
        self._scheduler = Scheduler(SchedulerConfig(max_batch_size, num_in_flight), self._pool)
        self._scheduler.add_pipeline(PIPELINE, KvLedger(slots // BLOCK_SIZE))
        self._live: list[Request] = []

    @abc.abstractmethod
    def shape(self, request: Request) -> Hashable:
        """Return the shape of a request; only requests of the same shape can share a batch."""

    @abc.abstractmethod
    def num_tokens(self, request: Request) -> int:
        """Return the number of tokens that the request computes in its next iteration."""

    @abc.abstractmethod
    def first(self, groups: list[list[Request]]) -> list[Request]:
        """Choose one of the groups, which are sorted by their oldest request."""

    def add(self, request: Request) -> None:
        """See Scheduling."""
        check_fits(request, self._slots)
        self._pool.add(request)
        self._live.append(request)

    def next_batch(self) -> Batch | None:
        """See Scheduling."""
        groups = self._groups()
        if not groups or self._scheduler.in_flight(PIPELINE) == self._num_in_flight:
            return None
        chosen = self.first(groups)[: self._max_batch_size]
        proposal = Proposal(tuple(Selection(request, self.num_tokens(request)) for request in chosen))
        return self._scheduler.dispatch(PIPELINE, proposal)

    def commit(self, batch: Batch, tokens: list[int]) -> list[Request]:
        """See Scheduling."""
        progressed = [request for _, request in self._scheduler.commit(batch, tokens)]
        if any(request.state is RequestState.FINISHED for request in progressed):
            self._live = [request for request in self._live if request.state is not RequestState.FINISHED]
        return progressed

    def _groups(self) -> list[list[Request]]:
        groups: dict[Hashable, list[Request]] = {}
        ledger = self._scheduler.ledger(PIPELINE)
        free_blocks = ledger.num_free_blocks
        for request in self._live:
            if request.state is RequestState.RUNNING:
                continue
            if request.state is RequestState.INITIATION:
                free_blocks -= ledger.blocks_to_admit(request)
                if free_blocks < 0:
                    continue  # later requests are not admitted either
            groups.setdefault(self.shape(request), []).append(request)
        return list(groups.values())
