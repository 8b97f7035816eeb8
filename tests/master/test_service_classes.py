"""Requests of batches beside interactive ones: who is admitted, who is preempted, and what new requests wait for."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.engine.config import EngineConfig
from orca_master.errors import QueueFullError
from orca_master.scheduling.backlog import Backlog, backlog
from orca_master.scheduling.batch import Batch, Proposal
from orca_master.scheduling.candidates import increments
from orca_master.scheduling.kv_ledger import LEDGERS, KvLedger
from orca_master.scheduling.lookahead import look_ahead
from orca_master.scheduling.policies import POLICIES
from orca_master.scheduling.prefix_cache import PrefixCache
from orca_master.scheduling.request import Request, RequestState, ServiceClass
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation
from support.freed_blocks import blocks_freed_by

CLASSES = st.sampled_from(ServiceClass)
shapes = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 12), CLASSES, st.integers(-2, 2)), min_size=1, max_size=12
)
configs = st.builds(
    SchedulerConfig,
    max_batch_size=st.integers(1, 4),
    n_workers=st.integers(1, 3),
    token_budget=st.none() | st.integers(1, 40),
    balanced=st.booleans(),
    keeps_spare_iteration=st.booleans(),
)


def request(number: int, service_class: ServiceClass, prompt: int = 4, answer: int = 4, priority: int = 0) -> Request:
    return Request(
        f"r{number}", number, (1,) * prompt, answer, priority=priority, service_class=service_class,
        arrived_at=float(number),
    )  # fmt: skip


class Run:
    """Plays a scheduler whose every token is 1, and checks each selection."""

    def __init__(self, config: SchedulerConfig, requests: list[Request], ledgers: list[KvLedger], policy: str) -> None:
        self.scheduler = Scheduler(config, RequestPool(1000, 1 << 20, POLICIES[policy]))
        self.in_flight: dict[str, deque[Batch]] = {}
        for number, ledger in enumerate(ledgers):
            self.scheduler.add_pipeline(f"p{number}", ledger)
            self.in_flight[f"p{number}"] = deque()
        self.requests = requests
        self.left = deque(requests)

    def arrive(self) -> None:
        if self.left:
            self.scheduler.pool.put_back(self.left.popleft())

    def schedule(self, pipeline: str) -> bool:
        waiting, admitted = list(self.scheduler.pool), list(self.scheduler._pipelines[pipeline].admitted)
        proposal = self.scheduler.select(pipeline)
        new = [entry.request for entry in proposal.selections if entry.request.state is RequestState.INITIATION]
        if any(entry.service_class is ServiceClass.BATCH for entry in new):
            left = [entry for entry in waiting if entry not in new]
            assert all(entry.service_class is ServiceClass.BATCH for entry in left), "no interactive request waits"
        if any(victim.service_class is ServiceClass.INTERACTIVE for victim in proposal.preempted):
            kept = [entry for entry in admitted if entry not in proposal.preempted]
            assert all(entry.service_class is ServiceClass.INTERACTIVE for entry in kept), "batches are preempted first"
        for entry in new:
            mine = [other for other in waiting if other.service_class is entry.service_class]
            ahead = mine[: mine.index(entry)]
            ledger = self.scheduler.ledger(pipeline)
            if ledger.prefix_cache is None:  # otherwise some wait for their prefix, and are passed over
                assert all(other in new or not ledger.can_finish(other) for other in ahead), "in order within a class"
        if any(victim.service_class is ServiceClass.INTERACTIVE for victim in proposal.preempted):
            assert not new
        if proposal:
            self.in_flight[pipeline].append(self.scheduler.dispatch(pipeline, proposal))
        if self.has_place(pipeline, proposal):
            self.check_blocks(pipeline)
        return bool(proposal)

    def has_place(self, pipeline: str, proposal: Proposal) -> bool:
        """Return True if only blocks can keep the first waiting request out of the batch."""
        config = self.scheduler.config
        return (
            bool(proposal)
            and not config.balanced
            and not proposal.is_full
            and len(proposal.selections) < config.max_batch_size
            and all(victim.service_class is ServiceClass.BATCH for victim in proposal.preempted)
            and self.scheduler.ledger(pipeline).prefix_cache is None
        )

    def check_blocks(self, pipeline: str) -> None:
        """Check that an interactive request that still waits would not fit in place of all requests of batches."""
        ledger = self.scheduler.ledger(pipeline)
        admitted = self.scheduler._pipelines[pipeline].admitted
        waiting = [entry for entry in self.scheduler.pool if ledger.can_finish(entry)]
        held = blocks_freed_by(ledger, [entry for entry in admitted if entry.service_class is ServiceClass.BATCH])
        if waiting and waiting[0].service_class is ServiceClass.INTERACTIVE:
            assert ledger.blocks_of(waiting[0]) > ledger.num_free_blocks + len(held), "it waits for interactive ones"

    def complete(self, pipeline: str) -> None:
        if self.in_flight[pipeline]:
            batch = self.in_flight[pipeline].popleft()
            self.scheduler.commit(batch, [1] * sum(entry.num_sampled for entry in batch.requests))

    def drain(self) -> None:
        while self.left:
            self.arrive()
        for _ in range(5000):
            progressed = [self.schedule(pipeline) for pipeline in self.in_flight]
            if not any(progressed):
                if not any(self.in_flight.values()):
                    break
                for pipeline in self.in_flight:
                    self.complete(pipeline)
        assert all(entry.state is RequestState.FINISHED for entry in self.requests)
        pool = self.scheduler.pool
        assert (len(pool), pool.num_interactive, pool.num_tokens, pool.num_known_tokens) == (0, 0, 0, 0)


@given(
    configs,
    shapes,
    st.lists(st.integers(5, 12), min_size=1, max_size=2),
    st.lists(st.sampled_from(["arrive", "schedule", "complete", "rewind"]), max_size=50),
    st.sampled_from(sorted(LEDGERS)),
    st.sampled_from(sorted(POLICIES)),
    st.booleans(),
)
def test_an_interactive_request_never_waits_for_one_of_a_batch(
    config, shapes, sizes, script, ledger, policy, shares
):  # fmt: skip
    """Neither for a queued one nor for blocks of one that runs, which is preempted under every ledger.

    On pipelines of different sizes: also while an interactive request waits for the larger one.
    """
    requests = [
        request(number, service_class, prompt, answer, priority)
        for number, (prompt, answer, service_class, priority) in enumerate(shapes)
    ]
    ledgers = [LEDGERS[ledger](size, PrefixCache() if shares else None) for size in sizes]
    run = Run(config, requests, ledgers, policy)
    for step in script:
        for pipeline in run.in_flight:
            if step == "schedule":
                run.schedule(pipeline)
            elif step == "complete":
                run.complete(pipeline)
            elif step == "rewind" and (held := run.scheduler._pipelines[pipeline].admitted):
                run.scheduler.rewind(held[0])
        if step == "arrive":
            run.arrive()
    run.drain()


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_lets_a_batch_go_first(policy):
    old = request(0, ServiceClass.BATCH, priority=-100)
    new = request(10_000, ServiceClass.INTERACTIVE, priority=100)
    assert POLICIES[policy](new) < POLICIES[policy](old)


def test_a_batch_takes_no_place_of_the_queue_and_delays_no_estimate():
    pool = RequestPool(1, 8)
    scheduler = Scheduler(SchedulerConfig(1, 1), pool)
    scheduler.add_pipeline("p", KvLedger(100))
    for number in range(5):
        pool.put_back(request(number, ServiceClass.BATCH))
    assert (len(pool), pool.num_interactive, pool.num_tokens, pool.num_known_tokens) == (5, 0, 0, 0)
    assert backlog(scheduler) == Backlog()
    scheduler.dispatch("p", scheduler.select("p"))
    assert backlog(scheduler, request(9, ServiceClass.INTERACTIVE)) == Backlog(), "the one that runs pauses"
    pool.add(request(5, ServiceClass.INTERACTIVE))
    assert [entry.arrival for entry in pool] == [5, 1, 2, 3, 4]
    assert backlog(scheduler) == Backlog(known=4)
    with pytest.raises(QueueFullError, match="1 requests are waiting, the limit is 1"):
        pool.add(request(6, ServiceClass.INTERACTIVE))


def test_an_interactive_request_that_does_not_fit_keeps_batches_out():
    """Its blocks are those that a batch would take: four of ten are held, and it needs eight."""
    scheduler = Scheduler(SchedulerConfig(4, 1), RequestPool(10, 10_000))
    scheduler.add_pipeline("p", KvLedger(10))
    scheduler.pool.add(request(0, ServiceClass.INTERACTIVE, 4, 60))
    scheduler.dispatch("p", scheduler.select("p"))
    scheduler.pool.put_back(request(1, ServiceClass.BATCH))
    scheduler.pool.add(request(2, ServiceClass.INTERACTIVE, 4, 120))
    state = scheduler._pipelines["p"]
    proposal = scheduler._fill(state, scheduler.pool, increments(state.admitted), 4)
    assert not proposal.selections


@pytest.mark.parametrize("ledger", LEDGERS)
def test_an_interactive_request_preempts_as_few_of_a_batch_as_it_needs_the_last_ones_first(ledger):
    """Ten blocks: five lines hold two each, and a request of three blocks comes."""
    scheduler = Scheduler(SchedulerConfig(8, 1), RequestPool(10, 10_000))
    scheduler.add_pipeline("p", LEDGERS[ledger](10))
    lines = [request(number, ServiceClass.BATCH, 16, 16) for number in range(5)]
    for entry in lines:
        scheduler.pool.put_back(entry)
    scheduler.commit(scheduler.dispatch("p", scheduler.select("p")), [1] * 5)
    new = request(5, ServiceClass.INTERACTIVE, 40, 8)
    scheduler.pool.add(new)
    proposal = scheduler.select("p")
    assert proposal.preempted == (lines[4], lines[3])
    assert [entry.request for entry in proposal.selections] == [new, *lines[:3]]
    scheduler.dispatch("p", proposal)
    assert list(scheduler.pool) == lines[3:], "they wait in their old order"


def test_requests_of_batches_are_not_preempted_if_that_does_not_suffice():
    scheduler = Scheduler(SchedulerConfig(8, 1), RequestPool(10, 10_000))
    scheduler.add_pipeline("p", KvLedger(10))
    first, line = request(0, ServiceClass.INTERACTIVE, 16, 64), request(1, ServiceClass.BATCH, 16, 16)
    scheduler.pool.add(first)
    scheduler.pool.put_back(line)
    scheduler.commit(scheduler.dispatch("p", scheduler.select("p")), [1] * 2)
    scheduler.pool.add(request(2, ServiceClass.INTERACTIVE, 16, 80))
    proposal = scheduler.select("p")
    assert not proposal.preempted
    assert [entry.request for entry in proposal.selections] == [first, line]


def test_blocks_that_an_interactive_request_shares_with_the_preempted_are_counted_once():
    """Six blocks, all of a line; three of them begin the new request, which needs five and leaves one."""
    scheduler = Scheduler(SchedulerConfig(8, 1), RequestPool(10, 10_000))
    scheduler.add_pipeline("p", KvLedger(6, PrefixCache()))
    line = request(0, ServiceClass.BATCH, 50, 46)
    scheduler.pool.put_back(line)
    scheduler.commit(scheduler.dispatch("p", scheduler.select("p")), [1])
    for number in (1, 2):
        scheduler.pool.add(request(number, ServiceClass.INTERACTIVE, 50, 30 if number == 1 else 46))
    proposal = scheduler.select("p")
    assert proposal.preempted == (line,)
    assert [(entry.request.arrival, entry.num_shared_blocks) for entry in proposal.selections] == [(1, 3)]
    scheduler.dispatch("p", proposal)
    assert scheduler.ledger("p").num_free_blocks == 1


def test_a_waiting_interactive_request_ends_the_lookahead_of_a_batch():
    scheduler = Scheduler(SchedulerConfig(1, 1), RequestPool(10, 10_000))
    scheduler.add_pipeline("p", KvLedger(10))
    scheduler.pool.put_back(request(0, ServiceClass.BATCH, answer=20))
    batch = scheduler.dispatch("p", scheduler.select("p"))
    assert look_ahead(scheduler, batch)
    scheduler.pool.add(request(1, ServiceClass.INTERACTIVE))
    assert not look_ahead(scheduler, batch)
    scheduler.commit(batch, [1])
    assert [entry.request.arrival for entry in scheduler.select("p").selections] == [1]


def test_an_engine_answers_interactive_requests_before_a_batch_that_came_first():
    """The queue has room for one request: those of the batch are not counted."""

    async def scene(made: Engine) -> None:
        for index in range(3):
            line = made.submission(f"b{index}", (index + 1,), 4)
            made.engine.submit(replace(line, service_class=ServiceClass.BATCH))
        made.engine.submit(made.submission("r", (9,), 4))
        assert made.engine.snapshot.num_waiting == 1
        await made.engine.start()
        answers = await made.collect(4)
        assert answers["r"] == continuation((9,), 4)
        firsts = [s.request.request_id for _, batch in made.batches for s in batch.requests if s.admitted]
        assert firsts == ["r", "b0", "b1", "b2"]
        assert len(made.first_tokens) == 1, "waits of a batch are no waits of clients"

    play(lambda: Engine(topology("a"), EngineConfig(max_batch_size=1, max_queued_requests=1)), scene)
