"""Properties of Scheduler and KvLedger under hypothesis (docs/architecture.md, section 3)."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.errors import QueueFullError
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import LEDGERS, KvLedger, PagedLedger, blocks_for
from orca_master.scheduling.policies import POLICIES, by_arrival, by_priority
from orca_master.scheduling.request import FinishReason, Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from support.draft_oracle import DraftOracle, ModelOracle, draft_after

STOP = 5

shapes = st.lists(st.tuples(st.integers(1, 70), st.integers(1, 12)), min_size=1, max_size=14)
configs = st.builds(
    SchedulerConfig,
    max_batch_size=st.integers(1, 5),
    n_workers=st.integers(1, 4),
    token_budget=st.none() | st.integers(1, 40),
    balanced=st.booleans(),
    speculative_tokens=st.sampled_from([0, 0, 1, 4]),
    keeps_spare_iteration=st.booleans(),
)


def next_token(tokens: list[int]) -> int:
    """Return a deterministic model: the next token depends on all tokens before it."""
    return (sum((index + 1) * token for index, token in enumerate(tokens)) * 31 + len(tokens)) % 97


def solo(prompt: tuple[int, ...], max_gen_tokens: int) -> list[int]:
    """Return what the model generates for a request alone."""
    generated: list[int] = []
    while len(generated) < max_gen_tokens and (not generated or generated[-1] != STOP):
        generated.append(next_token([*prompt, *generated]))
    return generated


class FakeEngine:
    """Runs a scheduler against the deterministic model and checks every invariant at every step."""

    def __init__(
        self,
        config: SchedulerConfig,
        shapes: list[tuple[int, int]],
        num_blocks: int,
        pipelines: int = 1,
        ledger: type[KvLedger] = KvLedger,
        priorities: list[int] | None = None,
    ):
        self.config = config
        order = by_arrival if priorities is None else by_priority
        self.scheduler = Scheduler(config, RequestPool(1000, 1 << 20, order))
        self.pipelines = [f"p{index}" for index in range(pipelines)]
        for pipeline in self.pipelines:
            self.scheduler.add_pipeline(pipeline, ledger(num_blocks))
        self.requests = [
            Request(
                str(arrival),
                arrival,
                tuple((arrival * 7 + index) % 90 + 6 for index in range(length)),
                limit,
                stop_token_ids=frozenset({STOP}),
                priority=priorities[arrival % len(priorities)] if priorities else 0,
                arrived_at=float(arrival),
            )
            for arrival, (length, limit) in enumerate(shapes)
        ]
        for index, request in enumerate(self.requests):
            if oracle := (DraftOracle, ModelOracle, None)[index % 3]:
                request.drafter = oracle(request, solo(request.prompt, request.max_gen_tokens))
        self.in_flight: dict[str, deque[tuple[Batch, list[int]]]] = {pipeline: deque() for pipeline in self.pipelines}
        self.iterations = dict.fromkeys((request.request_id for request in self.requests), 0)
        self.admitted_order: list[int] = []
        self.arrived = 0

    def arrive(self) -> None:
        if self.arrived < len(self.requests):
            self.scheduler.pool.add(self.requests[self.arrived])
            self.arrived += 1

    def schedule(self, pipeline: str) -> bool:
        proposal = self.scheduler.select(pipeline)
        assert proposal == self.scheduler.select(pipeline), "select changes nothing"
        if not proposal:
            assert not proposal.preempted
            return False
        selected = proposal.selections
        ledger = self.scheduler.ledger(pipeline)
        busy = {
            id(s.request)
            for queue in self.in_flight.values()
            for batch, _ in queue
            for s in batch.requests
            if s.incarnation == s.request.incarnation
        }
        assert len({selection.request.request_id for selection in selected}) == len(selected)
        assert len(selected) <= self.config.max_batch_size
        continues = any(id(selection.request) in busy for selection in selected)
        if continues:
            assert len(selected) == 1, "the next part of a prompt in flight only where a stage would be idle"
            assert self.config.balanced
            assert self.config.most_in_flight > 1
        for selection in selected:
            assert 1 <= selection.num_tokens <= selection.request.num_unscheduled
        if self.config.token_budget is not None:
            num_tokens = sum(selection.num_tokens + len(selection.draft) for selection in selected)
            assert num_tokens <= self.config.token_budget
        assert not {selection.request for selection in selected} & set(proposal.preempted)
        self.check_order(pipeline, [selection.request for selection in selected], continues)
        stages_suffice = len(self.scheduler._pipelines[pipeline].admitted) <= self.config.num_places
        stages_are_full = len(self.scheduler._pipelines[pipeline].admitted) >= self.config.num_places
        batch = self.scheduler.dispatch(pipeline, proposal)
        assert 0 <= ledger.num_reserved_slots <= ledger.num_blocks * BLOCK_SIZE
        tokens = []
        for scheduled in batch.requests:
            request = scheduled.request
            self.iterations[request.request_id] += 1
            if scheduled.admitted:
                self.admitted_order.append(request.arrival)
                assert len(scheduled.new_blocks) == ledger.blocks_to_admit(request)
                assert scheduled.row < ledger.num_holders, "the lowest free row: workers keep a row per holder, no more"
            known = len(request.prompt) + len(request.generated)
            assert scheduled.samples == (scheduled.context_length + scheduled.num_tokens == known)
            held = ledger.holding(request).blocks
            assert len(held) * BLOCK_SIZE >= known + len(scheduled.draft) + scheduled.num_drafts
            assert len(scheduled.draft) <= self.config.speculative_tokens
            assert scheduled.num_drafts <= (self.config.speculative_tokens if request.generated else 0)
            assert len(held) <= blocks_for(request.max_tokens)
            if scheduled.samples:
                inputs = [*request.prompt, *request.generated, *scheduled.draft]
                tokens += [next_token(inputs[:length]) for length in range(known, len(inputs) + 1)]
        self.in_flight[pipeline].append((batch, tokens))
        assert self.scheduler.in_flight(pipeline) == len(self.in_flight[pipeline]) <= self.config.most_in_flight
        is_full = len(batch.requests) == self.config.batch_size or (batch.is_full and stages_are_full)
        assert is_full or not stages_suffice or len(self.in_flight[pipeline]) <= self.config.n_workers
        return True

    def check_order(self, pipeline: str, selected: list[Request], continues: bool) -> None:
        """FCFS (a): within one Select nobody is served while an earlier selectable one is left out."""
        order = self.scheduler.pool.order
        assert selected == sorted(selected, key=order)
        for request in self.scheduler._pipelines[pipeline].admitted:
            if request.state is RequestState.INCREMENT and request not in selected:
                assert not continues
                assert order(request) > order(selected[-1])

    def complete(self, pipeline: str) -> None:
        if self.in_flight[pipeline]:
            batch, tokens = self.in_flight[pipeline].popleft()
            for _, request in self.scheduler.commit(batch, tokens):
                assert request.generated == solo(request.prompt, request.max_gen_tokens)[: len(request.generated)]
            draft_after(batch)

    def drain(self) -> None:
        """Run until all is done; the bound makes a deadlock a failure."""
        while self.arrived < len(self.requests):
            self.arrive()
        for _ in range(20_000):
            progressed = [self.schedule(pipeline) for pipeline in self.pipelines]
            if not any(progressed):
                if not any(self.in_flight.values()):
                    break
                for pipeline in self.pipelines:
                    self.complete(pipeline)
        for request in self.requests:
            assert request.state is RequestState.FINISHED
            if request.finish_reason is not FinishReason.CANCELLED:
                assert request.generated == solo(request.prompt, request.max_gen_tokens)
        for pipeline in self.pipelines:
            ledger = self.scheduler.ledger(pipeline)
            assert ledger.num_free_blocks == ledger.num_blocks
            assert ledger.num_holders == 0
        assert len(self.scheduler.pool) == 0
        assert self.scheduler.num_running == 0


steps = st.lists(st.sampled_from(["arrive", "schedule", "complete"]), max_size=60)


def play(engine: FakeEngine, script: list[str]) -> None:
    for step in script:
        for pipeline in engine.pipelines:
            if step == "schedule":
                engine.schedule(pipeline)
            elif step == "complete":
                engine.complete(pipeline)
        if step == "arrive":
            engine.arrive()


@given(configs, shapes, st.integers(6, 30), steps)
def test_every_request_finishes_within_all_bounds(config, shapes, num_blocks, script):
    engine = FakeEngine(config, shapes, num_blocks)
    play(engine, script)
    engine.drain()
    assert engine.admitted_order == sorted(engine.admitted_order), "admission in arrival order"


@given(configs, shapes, st.integers(6, 12), steps, st.integers(1, 2))
def test_paged_admission_preempts_the_youngest_and_finishes_everyone(config, shapes, num_blocks, script, pipelines):
    """Few blocks, so that requests run out of them; `FakeEngine` compares every token with the solo run."""
    engine = FakeEngine(config, shapes, num_blocks, pipelines, PagedLedger)
    for step in script:
        for pipeline in engine.pipelines:
            proposal = engine.scheduler.select(pipeline)
            kept = [selection.request.arrival for selection in proposal.selections]
            assert all(victim.arrival > max(kept) for victim in proposal.preempted)
        play(engine, [step])
    engine.drain()


@given(configs, shapes, st.integers(6, 30), steps)
def test_iteration_level_fcfs_without_chunks(config, shapes, num_blocks, script):
    """FCFS (b): the earlier of two requests has run the same number of iterations or more."""
    config = SchedulerConfig(config.max_batch_size, config.n_workers, None, config.balanced)
    engine = FakeEngine(config, shapes, num_blocks)

    def check() -> None:
        alive = [r for r in engine.requests[: engine.arrived] if r.state is not RequestState.FINISHED]
        counts = [engine.iterations[request.request_id] for request in alive]
        assert counts == sorted(counts, reverse=True)

    for step in script:
        play(engine, [step])
        check()
    while engine.arrived < len(engine.requests):
        engine.arrive()
    for _ in range(2000):
        if not engine.schedule("p0"):
            engine.complete("p0")
        check()
    engine.drain()


@given(configs, shapes, st.integers(6, 30), steps, st.integers(2, 3))
def test_several_pipelines_share_one_pool_in_arrival_order(config, shapes, num_blocks, script, pipelines):
    """FCFS (c): first service is in arrival order over all pipelines."""
    engine = FakeEngine(config, shapes, num_blocks, pipelines)
    play(engine, script)
    engine.drain()
    assert engine.admitted_order == sorted(engine.admitted_order)


@given(
    configs,
    shapes,
    st.integers(6, 30),
    st.lists(st.tuples(st.sampled_from(["arrive", "schedule", "complete", "rewind", "cancel"]), st.integers(0, 13))),
    st.integers(1, 2),
    st.sampled_from(sorted(LEDGERS)),
    st.none() | st.lists(st.integers(-2, 2), min_size=1, max_size=5),
)
def test_rewind_and_cancel_at_any_point_leave_tokens_and_ledger_right(
    config, shapes, num_blocks, script, pipelines, policy, priorities
):
    """Results that were under way are stale and ignored; `FakeEngine` compares every token with the solo run."""
    engine = FakeEngine(config, shapes, num_blocks, pipelines, LEDGERS[policy], priorities)
    for step, index in script:
        request = engine.requests[index % len(engine.requests)]
        if step == "rewind":
            if request.request_id in engine.scheduler._pipeline_of:
                engine.scheduler.rewind(request)
        elif step == "cancel":
            if request.arrival < engine.arrived:
                engine.scheduler.cancel(request)
        else:
            play(engine, [step])
    engine.drain()


@given(
    configs,
    shapes,
    st.integers(6, 12),
    st.lists(st.sampled_from(["arrive", "schedule", "complete", *LEDGERS, *POLICIES]), max_size=80),
    st.integers(1, 2),
    st.lists(st.integers(-2, 2), min_size=1, max_size=5),
)
def test_admission_and_order_may_change_between_any_two_iterations(
    config, shapes, num_blocks, script, pipelines, priorities
):
    """With few blocks: requests that `paged` admitted still have to grow, beside reservations. Everything ends."""
    engine = FakeEngine(config, shapes, num_blocks, pipelines, priorities=priorities)
    for step in script:
        held = [(ledger.num_free_blocks, ledger.num_holders) for ledger in engine.scheduler.ledgers]
        if step in LEDGERS:
            engine.scheduler.set_admission(LEDGERS[step])
            assert {type(ledger) for ledger in engine.scheduler.ledgers} == {LEDGERS[step]}
        elif step in POLICIES:
            engine.scheduler.set_order(POLICIES[step])
            waiting = list(engine.scheduler.pool)
            assert waiting == sorted(waiting, key=POLICIES[step])
        else:
            play(engine, [step])
            continue
        assert held == [(ledger.num_free_blocks, ledger.num_holders) for ledger in engine.scheduler.ledgers]
    engine.drain()


def test_a_request_that_was_admitted_without_a_reservation_grows_by_preemption_under_reserve():
    """Two requests share four blocks under `paged`, and each needs three. The older one gets the third."""
    pool = RequestPool(10, 10_000)
    scheduler = Scheduler(SchedulerConfig(max_batch_size=2, n_workers=1), pool)
    scheduler.add_pipeline("p", PagedLedger(4))
    old, young = (Request(str(arrival), arrival, (1,) * 20, 2 * BLOCK_SIZE - 4) for arrival in range(2))
    for request in (old, young):
        pool.add(request)

    def iterate() -> None:
        batch = scheduler.dispatch("p", scheduler.select("p"))
        scheduler.commit(batch, [7] * len(batch.requests))

    iterate()
    assert scheduler.num_running == 2
    scheduler.set_admission(KvLedger)
    while not young.incarnation:
        assert len(young.generated) == len(old.generated)
        iterate()
    assert old.num_tokens > 2 * BLOCK_SIZE
    assert (len(scheduler.ledger("p").holding(old).blocks), scheduler.ledger("p").num_free_blocks) == (3, 1)
    while old.state is not RequestState.FINISHED:
        assert list(pool) == [young], "it waits for a reservation of all of its tokens"
        iterate()
    iterate()
    assert len(scheduler.ledger("p").holding(young).blocks) == blocks_for(young.max_tokens) == 3


@given(configs, shapes, st.integers(6, 30), steps)
def test_losing_a_pipeline_moves_its_requests(config, shapes, num_blocks, script):
    engine = FakeEngine(config, shapes, num_blocks, pipelines=2)
    play(engine, script)
    engine.scheduler.remove_pipeline("p0")
    for batch, tokens in engine.in_flight.pop("p0"):
        assert engine.scheduler.commit(batch, tokens) == [], "stale"
    engine.pipelines = ["p1"]
    engine.drain()


@pytest.mark.parametrize("policy", LEDGERS)
def test_a_request_that_only_a_larger_pipeline_can_finish_waits_for_that_one(policy):
    """Under `paged` its first blocks fit on the smaller, too, where it could never end."""
    pool = RequestPool(10, 10_000)
    scheduler = Scheduler(SchedulerConfig(max_batch_size=4, n_workers=1), pool)
    for name, num_blocks in (("small", 2), ("large", 8)):
        scheduler.add_pipeline(name, LEDGERS[policy](num_blocks))
    pool.add(Request("long", 0, (1,) * 5, 6 * BLOCK_SIZE))
    pool.add(Request("short", 1, (1,) * 5, 5))
    for pipeline, request_id in (("small", "short"), ("large", "long")):
        (scheduled,) = scheduler.dispatch(pipeline, scheduler.select(pipeline)).requests
        assert scheduled.request.request_id == request_id


def test_a_suspect_that_waits_for_a_larger_pipeline_holds_no_other_up():
    pool = RequestPool(10, 10_000)
    scheduler = Scheduler(SchedulerConfig(max_batch_size=4, n_workers=1), pool)
    scheduler.add_pipeline("small", KvLedger(2))
    long, short = Request("long", 0, (1,) * 5, 6 * BLOCK_SIZE), Request("short", 1, (1,) * 5, 5)
    for request in (long, short):
        pool.add(request)
    while not long.runs_alone:
        scheduler.suspect(long)
    (selection,) = scheduler.select("small").selections
    assert selection.request is short
    scheduler.add_pipeline("large", KvLedger(8))
    (selection,) = scheduler.select("large").selections
    assert selection.request is long


@pytest.mark.parametrize("policy", LEDGERS)
def test_an_embedding_that_fills_all_blocks_is_computed(policy):
    """It samples no token, for which it would need another block."""
    pool = RequestPool(10, 10_000)
    scheduler = Scheduler(SchedulerConfig(max_batch_size=4, n_workers=1), pool)
    scheduler.add_pipeline("p", LEDGERS[policy](4))
    request = Request("all", 0, (1,) * 4 * BLOCK_SIZE, 0, pooling="mean")
    pool.add(request)
    batch = scheduler.dispatch("p", scheduler.select("p"))
    assert [scheduled.num_tokens for scheduled in batch.requests] == [4 * BLOCK_SIZE]
    scheduler.commit(batch, [])
    assert request.finish_reason is not None
    assert scheduler.ledger("p").num_free_blocks == 4


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=60), st.integers(1, 40))
def test_ledger_grants_each_block_once(operations, num_blocks):
    """Admit and release in any order: no block or row is held twice, none is lost."""
    ledger = KvLedger(num_blocks)
    held: dict[str, tuple[Request, int]] = {}
    for number, (release, max_tokens) in enumerate(operations):
        if release and held:
            ledger.release(held.pop(sorted(held)[max_tokens % len(held)])[0])
        else:
            request = Request(str(number), number, (1,) * max_tokens, 1)
            if ledger.blocks_to_admit(request) <= ledger.num_free_blocks:
                holding = ledger.admit(request)
                assert len(holding.blocks) == blocks_for(request.max_tokens)
                held[request.request_id] = (request, holding.row)
        blocks = [block for request, _ in held.values() for block in ledger.holding(request).blocks]
        assert len(blocks) == len(set(blocks)) == num_blocks - ledger.num_free_blocks
        assert set(blocks) <= set(range(num_blocks))
        rows = [row for _, row in held.values()]
        assert len(rows) == len(set(rows)) == ledger.num_holders
        assert max(rows, default=0) < len(operations)
        expected = sum(blocks_for(request.max_tokens) for request, _ in held.values()) * BLOCK_SIZE
        assert ledger.num_reserved_slots == expected


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 10), st.integers(1, 120))
def test_pool_is_bounded_and_ordered(lengths, max_requests, max_tokens):
    pool = RequestPool(max_requests, max_tokens)
    accepted = []
    for arrival, length in enumerate(lengths):
        request = Request(str(arrival), arrival, (1,) * length, 1)
        tokens = sum(waiting.max_tokens for waiting in accepted)
        fits = len(accepted) < max_requests and (not accepted or tokens + request.max_tokens <= max_tokens)
        try:
            pool.add(request)
        except QueueFullError:
            assert not fits
        else:
            assert fits
            accepted.append(request)
        if arrival % 3 == 2 and accepted:
            taken = accepted.pop(0)
            pool.remove(taken)
            if arrival % 2:
                pool.put_back(taken)
                accepted.insert(0, taken)
        assert list(pool) == accepted


def test_balanced_batches_keep_every_stage_busy():
    """Four live requests on two workers: two batches of two, where the printed algorithm makes one of four."""
    for balanced, sizes in ((True, [2, 2]), (False, [4])):
        engine = FakeEngine(SchedulerConfig(8, 2, None, balanced), [(4, 4)] * 4, 30)
        for _ in range(4):
            engine.arrive()
        while engine.schedule("p0"):
            pass
        assert [len(batch.requests) for batch, _ in engine.in_flight["p0"]] == sizes


def test_one_more_iteration_than_stages_is_in_flight_if_it_is_full():
    config = SchedulerConfig(2, 2, None, keeps_spare_iteration=True)
    for num_requests, sizes in ((6, [2, 2, 2]), (5, [2, 2]), (9, [2, 2, 2])):
        engine = FakeEngine(config, [(4, 4)] * num_requests, 30)
        for _ in range(num_requests):
            engine.arrive()
        while engine.schedule("p0"):
            pass
        assert [len(batch.requests) for batch, _ in engine.in_flight["p0"]] == sizes


def test_requests_of_the_spare_iteration_go_on_when_it_is_not_full_any_more():
    engine = FakeEngine(SchedulerConfig(2, 2, None, keeps_spare_iteration=True), [(4, 40)] * 5 + [(4, 2)], 30)
    for _ in range(6):
        engine.arrive()
    for _ in range(60):
        while engine.schedule("p0"):
            pass
        running = [len(request.generated) for request in engine.scheduler.admitted]
        assert max(running, default=0) - min(running, default=0) <= 2
        engine.complete("p0")


def test_one_more_iteration_than_stages_is_in_flight_if_no_token_of_a_prompt_fits_beside_full_batches():
    """A prompt that no stage has a place for begins; where batches have places, it waits to share one."""
    for num_short, sizes in ((4, [[1, 1], [1, 1], [14]]), (3, [[1, 1], [1, 13]])):
        config = SchedulerConfig(2, 2, 14, balanced=False, keeps_spare_iteration=True)
        engine = FakeEngine(config, [(1, 4)] * num_short + [(40, 4)], 30)
        for _ in range(num_short + 1):
            engine.arrive()
        while engine.schedule("p0"):
            pass
        in_flight = [[entry.num_tokens for entry in batch.requests] for batch, _ in engine.in_flight["p0"]]
        assert in_flight == sizes


def test_a_request_that_does_not_fit_is_not_overtaken():
    """`break`, never skip: the small request behind the large one waits, although it would fit."""
    engine = FakeEngine(SchedulerConfig(8, 1), [(16, 16), (60, 4), (1, 1)], num_blocks=5)
    for _ in range(3):
        engine.arrive()
    assert [selection.request.arrival for selection in engine.scheduler.select("p0").selections] == [0]


def test_paged_admission_runs_more_requests_in_the_same_slots():
    """Five blocks: the paper's reservation admits one of these at a time, paging all three."""
    for ledger, admitted in ((KvLedger, 1), (PagedLedger, 3)):
        engine = FakeEngine(SchedulerConfig(8, 1, None), [(10, 40)] * 3, 5, ledger=ledger)
        for _ in range(3):
            engine.arrive()
        engine.schedule("p0")
        assert engine.scheduler.num_running == admitted
        engine.drain()
