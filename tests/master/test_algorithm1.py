"""The published Algorithm 1, and ours beside it, step by step (balance and chunking off)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.scheduling.kv_ledger import KvLedger, blocks_for
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig


@dataclass
class PaperRequest:
    """A request as the algorithm sees it; `remaining` counts the tokens it still generates."""

    arrival: int
    max_tokens: int
    remaining: int
    state: str = "INITIATION"


class Algorithm1:
    """Lines 1 to 28 of the paper's Algorithm 1, cut into the turns of its loop."""

    def __init__(self, n_workers: int, max_bs: int, n_slots: int) -> None:
        self.n_workers, self.max_bs, self.n_slots = n_workers, max_bs, n_slots
        self.n_scheduled = 0  # line 1
        self.n_rsrv = 0  # line 2
        self.pool: list[PaperRequest] = []
        self.scheduled: deque[list[PaperRequest]] = deque()

    def schedule(self) -> list[int]:  # lines 4 to 8
        batch, self.n_rsrv = self.select(self.n_rsrv)
        if batch:  # an empty selection schedules nothing (docs/contracts.md, section 2)
            self.scheduled.append(batch)
            for req in batch:
                req.state = "RUNNING"
            self.n_scheduled += 1
        return [req.arrival for req in batch]

    def wait(self) -> None:  # lines 10 to 15
        for req in self.scheduled.popleft():
            req.state = "INCREMENT"
            req.remaining -= 1
            if req.remaining == 0:
                self.n_rsrv -= req.max_tokens
                self.pool.remove(req)
        self.n_scheduled -= 1

    def select(self, n_rsrv: int) -> tuple[list[PaperRequest], int]:  # lines 17 to 28
        batch: list[PaperRequest] = []
        pool = [req for req in self.pool if req.state != "RUNNING"]
        pool.sort(key=lambda req: req.arrival)
        for req in pool:
            if len(batch) == self.max_bs:
                break
            if req.state == "INITIATION":
                new_n_rsrv = n_rsrv + req.max_tokens
                if new_n_rsrv > self.n_slots:
                    break
                n_rsrv = new_n_rsrv
            batch.append(req)
        return batch, n_rsrv


@given(
    n_workers=st.integers(1, 4),
    max_bs=st.integers(1, 5),
    num_blocks=st.integers(5, 20),
    arrivals=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 60), st.integers(1, 10)), min_size=1, max_size=15),
)
def test_ours_agrees_with_the_paper_step_by_step(n_workers, max_bs, num_blocks, arrivals):
    """Same batch at every turn; the reference gets the reservations rounded to blocks."""
    paper = Algorithm1(n_workers, max_bs, num_blocks * BLOCK_SIZE)
    ours = Scheduler(SchedulerConfig(max_bs, n_workers, None, balanced=False), RequestPool(100, 10**6))
    ours.add_pipeline("p", KvLedger(num_blocks))
    in_flight: deque = deque()
    pending = deque((turn, arrival, *rest) for arrival, (turn, *rest) in enumerate(sorted(arrivals)))
    turn = 0
    while pending or paper.pool:
        while pending and pending[0][0] <= turn:
            _, arrival, prompt, limit = pending.popleft()
            paper.pool.append(PaperRequest(arrival, blocks_for(prompt + limit) * BLOCK_SIZE, limit))
            ours.pool.add(Request(str(arrival), arrival, (1,) * prompt, limit))
        expected = paper.schedule()
        selected = ours.select("p")
        assert [selection.request.arrival for selection in selected.selections] == expected
        if selected:
            in_flight.append(ours.dispatch("p", selected))
        assert ours.ledger("p").num_reserved_slots == paper.n_rsrv
        assert ours.in_flight("p") == paper.n_scheduled
        if in_flight and (paper.n_scheduled == n_workers or not selected):  # line 9, or nothing else to do
            paper.wait()
            batch = in_flight.popleft()
            ours.commit(batch, [0] * len(batch.requests))
        turn += 1
        assert turn < 5000
