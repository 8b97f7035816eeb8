"""Room: what is left of a pipeline while a batch is built whose requests share blocks."""

from __future__ import annotations

import pytest
from orca_master.scheduling import room
from orca_master.scheduling.kv_ledger import KvLedger, PagedLedger
from orca_master.scheduling.prefix_cache import PrefixCache
from orca_master.scheduling.request import Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig


def request(arrival: int, prompt: tuple[int, ...], max_gen_tokens: int = 1, **sampling: float) -> Request:
    return Request(str(arrival), arrival, prompt, max_gen_tokens, sampling=SamplingParameters(**sampling))


def scheduler_of(ledger: KvLedger) -> Scheduler:
    scheduler = Scheduler(SchedulerConfig(max_batch_size=8, n_workers=1, balanced=False), RequestPool(100, 10_000))
    scheduler.add_pipeline("p", ledger)
    return scheduler


def iterate(scheduler: Scheduler) -> list[str]:
    """Run one iteration; return the ids of its requests."""
    batch = scheduler.dispatch("p", scheduler.select("p"))
    scheduler.commit(batch, [7] * sum(scheduled.samples for scheduled in batch.requests))
    return [scheduled.request.request_id for scheduled in batch.requests]


def test_unused_blocks_that_two_requests_share_are_taken_once():
    """Four blocks: the common two, which nobody holds, and one for each of two requests."""
    common = tuple(range(32))
    scheduler = scheduler_of(KvLedger(4, PrefixCache()))
    scheduler.pool.add(request(0, (*common, 90)))
    assert iterate(scheduler) == ["0"]
    for arrival in (1, 2):
        scheduler.pool.add(request(arrival, (*common, 90 + arrival)))
    assert iterate(scheduler) == ["1", "2"]


def test_blocks_of_a_victim_that_a_request_of_the_batch_shares_are_not_freed():
    """The oldest request, which was rewound, shares two blocks with the victim: a third is left for the others."""
    common = tuple(range(32))
    oldest, second, third, victim = (
        request(0, (*common, 90), 20),
        request(1, tuple(range(100, 115)), 20),
        request(2, tuple(range(200, 215)), 20),
        request(3, (*common, 91), 14),
    )
    scheduler = scheduler_of(PagedLedger(6, PrefixCache()))
    for entry in (oldest, second, third, victim):
        scheduler.pool.add(entry)
    for _ in range(2):
        assert iterate(scheduler) == ["0", "1", "2", "3"]
    assert scheduler.ledger("p").num_free_blocks == 0
    scheduler.rewind(oldest)
    assert scheduler.ledger("p").num_free_blocks == 1, "the others of its blocks are the victim's, too"
    proposal = scheduler.select("p")
    assert [selection.request for selection in proposal.selections] == [oldest, second]
    assert proposal.preempted == (victim,)
    scheduler.dispatch("p", proposal)
    assert victim.state is RequestState.INITIATION


def test_messages_that_repeat_cached_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """Requests with penalties repeat 32 cached tokens each: two of them fit, and any number of those without."""
    monkeypatch.setattr(room, "MOST_HISTORY", 64)
    common = tuple(range(32))
    scheduler = scheduler_of(KvLedger(100, PrefixCache()))
    scheduler.pool.add(request(0, (*common, 90)))
    assert iterate(scheduler) == ["0"]
    for arrival in range(1, 6):
        sampling = {} if arrival == 2 else {"presence_penalty": 0.5}
        scheduler.pool.add(request(arrival, (*common, 90 + arrival), **sampling))
    assert [iterate(scheduler), iterate(scheduler)] == [["1", "2", "3"], ["4", "5"]]
    monkeypatch.setattr(room, "MOST_HISTORY", 31)
    for arrival in range(6, 8):
        scheduler.pool.add(request(arrival, (*common, 90 + arrival), presence_penalty=0.5))
    assert [iterate(scheduler), iterate(scheduler)] == [["6"], ["7"]], "a single request may have more"
