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
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import LEDGERS, KvLedger
from orca_master.scheduling.lookahead import look_ahead
from orca_master.scheduling.policies import POLICIES
from orca_master.scheduling.request import Request, RequestState, ServiceClass
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler, SchedulerConfig
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation

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
            assert all(other in new or not ledger.can_finish(other) for other in ahead), "in order within a class"
        if proposal:
            self.in_flight[pipeline].append(self.scheduler.dispatch(pipeline, proposal))
        return bool(proposal)

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
)
def test_an_interactive_request_never_waits_for_a_queued_one_of_a_batch(
    config, shapes, sizes, script, ledger, policy
):  # fmt: skip
    """On pipelines of different sizes: also while an interactive request waits for the larger one."""
    requests = [
        request(number, service_class, prompt, answer, priority)
        for number, (prompt, answer, service_class, priority) in enumerate(shapes)
    ]
    run = Run(config, requests, [LEDGERS[ledger](size) for size in sizes], policy)
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
    proposal = scheduler._fill(scheduler._pipelines["p"], scheduler.pool, scheduler._pipelines["p"].admitted, 4)
    assert not proposal.selections


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
