"""Room: what is left of a pipeline while a batch is built whose requests share blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orca_master.scheduling import room
from orca_master.scheduling.kv_ledger import Holding, KvLedger, PagedLedger
from orca_master.scheduling.prefix_cache import PrefixCache
from orca_master.scheduling.request import Request, RequestState, ServiceClass
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from support.freed_blocks import blocks_freed_by


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


def victims_by_definition(
    before: room.Room, num_blocks: int, admitted: Sequence[Request], kept: Sequence[Request], cached: Sequence[int]
) -> tuple[list[Request], int]:
    """Return what `Room._victims` returns: here the freed blocks of all victims are determined for each of them."""
    victims, num_free = list(before.preempted), before.num_blocks
    freed_before = blocks_freed_by(before.ledger, victims).difference(before._shared, cached)
    for victim in reversed(admitted):
        if num_free >= num_blocks or victim in kept:
            break
        if victim not in victims:
            victims.append(victim)
            freed = blocks_freed_by(before.ledger, victims).difference(before._shared, cached)
            num_free = before.num_blocks + len(freed) - len(freed_before)
    return victims, num_free


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8), st.integers(0, 2), st.integers(0, 3)), max_size=6),
)
@example([(0, 1, 1), (0, 1, 1)], [(2, 8, 0, 0), (2, 8, 0, 0)])  # the second victim frees the block of both
def test_victims_are_those_of_the_definition_however_their_blocks_are_shared(shapes, steps):
    """Requests of three documents, and one after another that needs blocks and begins with those of a document."""
    ledger, documents = (
        KvLedger(100, PrefixCache()),
        [tuple(range(100 * number, 100 * number + 48)) for number in (1, 2, 3)],
    )
    admitted = []
    for arrival, (document, num_shared, num_own) in enumerate(shapes):
        entry = request(arrival, (*documents[document][: 16 * num_shared], arrival), 16 * num_own - 1)
        ledger.admit(entry, len(ledger.cached_blocks(entry)))
        ledger.note_contents(entry, entry.num_tokens)
        admitted.append(entry)
    built = room.Room(ledger, 1, None)
    for num_blocks, number, document, num_cached in steps:
        kept = admitted[number : number + 1]
        cached = ledger.cached_blocks(request(99, (*documents[document][: 16 * num_cached], 0)))
        victims = victims_by_definition(built, num_blocks, admitted, kept, cached)
        assert built._victims(num_blocks, admitted, kept.__contains__, cached) == victims
        if victims[1] >= num_blocks:
            built._preempt(victims[0], victims[1] - num_blocks)
            built._shared.update(cached)
        assert built._freed == blocks_freed_by(ledger, built.preempted)


class CountingLedger(KvLedger):
    """Counts how often the blocks of a request are looked at."""

    num_looks = 0

    def holding(self, request: Request) -> Holding:
        self.num_looks += 1
        return super().holding(request)


def test_an_interactive_request_that_waits_looks_once_at_each_request_of_a_batch():
    """For 30 requests of batches, whose blocks together do not suffice."""
    ledger = CountingLedger(100)
    first = request(0, (1,), 16 * 40 - 1)
    lines = [request(arrival, (1,), 31) for arrival in range(1, 31)]
    for entry in lines:
        entry.service_class = ServiceClass.BATCH
    for entry in (first, *lines):
        ledger.admit(entry)
    built, waiting = room.Room.of(ledger), request(99, (1,), 16 * 99)
    ledger.num_looks = 0
    assert not built.preempt_batches(waiting, built.cost_of(waiting), [first, *lines])
    assert (ledger.num_looks, built.num_blocks, built.preempted) == (30, 0, [])
