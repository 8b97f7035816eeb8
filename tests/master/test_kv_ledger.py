"""Shared blocks under hypothesis: in the simulated memory of a worker every slot depends on all tokens before it."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import LEDGERS, KvLedger, PagedLedger, kv_usage
from orca_master.scheduling.lookahead import look_ahead
from orca_master.scheduling.prefix_cache import CacheUse, PrefixCache
from orca_master.scheduling.request import Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig

configs = st.builds(
    SchedulerConfig,
    max_batch_size=st.integers(1, 5),
    n_workers=st.integers(1, 3),
    token_budget=st.none() | st.integers(1, 60),
    balanced=st.booleans(),
)
shapes = st.lists(
    st.tuples(
        st.sampled_from([16, 32, 33, 48, 64]), st.integers(1, 18), st.sampled_from([1, 8, 20]), st.sampled_from("aaab")
    ),
    min_size=3,
    max_size=12,
)
"""Of each request: tokens of the common text, tokens of its own, generated tokens, and its salt."""
WORK = ["arrive", "schedule", "complete"] * 4
scripts = st.lists(
    st.tuples(st.sampled_from([*WORK, "rewind", "cancel", *LEDGERS]), st.integers(0, 11)), min_size=20, max_size=80
)


def contents(salt: str, tokens: list[int]) -> list[int]:
    """Return what each slot contains: its value depends on the salt and on every token up to its position."""
    values = [hash(salt)]
    for token in tokens:
        values.append(hash((values[-1], token)))
    return values[1:]


class Workers:
    """A pipeline's memory. Iterations run in their order; each stores all of its tokens before it reads any."""

    def __init__(self, num_blocks: int) -> None:
        self.memory = [[0] * BLOCK_SIZE for _ in range(num_blocks)]
        self.blocks: dict[int, list[int]] = {}
        self.sampled: dict[int, int] = {}
        self.num_computed = 0

    def run(self, batch: Batch, known: list[list[int]]) -> list[int]:
        """Return the sampled tokens. `known`: the tokens of each request when the iteration was sent."""
        expected = []
        for scheduled, tokens in zip(batch.requests, known, strict=True):
            if scheduled.admitted:
                self.blocks[scheduled.row] = []
            self.blocks[scheduled.row] += scheduled.new_blocks
            length = scheduled.context_length + scheduled.num_tokens
            pending = [self.sampled[scheduled.row]] if length > len(tokens) else []
            expected.append(contents(scheduled.request.cache_salt, tokens + pending)[:length])
            for position in range(scheduled.context_length, length):
                block = self.blocks[scheduled.row][position // BLOCK_SIZE]
                self.memory[block][position % BLOCK_SIZE] = expected[-1][position]
                self.num_computed += 1
        for scheduled, values in zip(batch.requests, expected, strict=True):
            slots = [slot for block in self.blocks[scheduled.row] for slot in self.memory[block]]
            assert slots[: len(values)] == values, "a wrong block"
            self.sampled[scheduled.row] = values[-1] % 50
        return [self.sampled[scheduled.row] for scheduled in batch.requests if scheduled.samples]


class Engine:
    """Runs a scheduler with prefix caches over simulated workers, and checks the ledgers after every step."""

    def __init__(
        self, config: SchedulerConfig, requests: list[Request], num_blocks: int, pipelines: int, policy: type[KvLedger]
    ) -> None:
        self.scheduler = Scheduler(config, RequestPool(1000, 1 << 20))
        self.requests = requests
        self.arrived = self.num_evictions = 0
        self.workers = {f"p{number}": Workers(num_blocks) for number in range(pipelines)}
        self.in_flight: dict[str, deque[tuple[Batch, list[list[int]]]]] = {name: deque() for name in self.workers}
        for name in self.workers:
            self.scheduler.add_pipeline(name, policy(num_blocks, PrefixCache()))

    def step(self, step: str, index: int) -> None:
        request = self.requests[index % len(self.requests)]
        if step == "arrive" and self.arrived < len(self.requests):
            self.scheduler.pool.add(self.requests[self.arrived])
            self.arrived += 1
        elif step == "rewind" and request.request_id in self.scheduler._pipeline_of:
            self.scheduler.rewind(request)
        elif step == "cancel" and request.arrival < self.arrived:
            self.scheduler.cancel(request)
        elif step in LEDGERS:
            self.scheduler.set_admission(LEDGERS[step])
        for name in self.workers:
            if step == "schedule":
                self.schedule(name)
            elif step == "complete":
                self.complete(name)
        self.check()

    def schedule(self, name: str) -> bool:
        proposal = self.scheduler.select(name)
        assert proposal == self.scheduler.select(name), "select changes nothing"
        if not proposal and self.scheduler.config.n_workers == 1 and len(self.in_flight[name]) == 1:
            proposal = look_ahead(self.scheduler, self.in_flight[name][0][0])
        if not proposal:
            return False
        batch = self.scheduler.dispatch(name, proposal)
        self.num_evictions += batch.cache_use.num_evictions
        assert all(scheduled.num_tokens >= 1 for scheduled in batch.requests)
        known = [scheduled.request.tokens(0, scheduled.request.num_tokens) for scheduled in batch.requests]
        self.in_flight[name].append((batch, known))
        self.check()
        return True

    def complete(self, name: str) -> None:
        if self.in_flight[name]:
            batch, known = self.in_flight[name].popleft()
            self.scheduler.commit(batch, self.workers[name].run(batch, known))

    def drain(self) -> None:
        while self.arrived < len(self.requests):
            self.step("arrive", 0)
        for _ in range(20_000):
            scheduled = [self.schedule(name) for name in self.workers]
            if not any(scheduled):
                if not any(self.in_flight.values()):
                    break
                for name in self.workers:
                    self.complete(name)
        assert all(request.state is RequestState.FINISHED for request in self.requests)
        self.check()
        assert kv_usage(self.scheduler.ledgers) == 0

    def check(self) -> None:
        """Each block is held, or has a content that nobody uses, or is free: a block leaves with its last holder."""
        for ledger in self.scheduler.ledgers:
            held = Counter(block for holding in ledger._holdings.values() for block in holding.blocks)
            assert held == ledger._num_holders
            assert ledger.prefix_cache is not None
            unused = set(ledger.prefix_cache._unused)
            assert len(ledger._free_blocks) == len(set(ledger._free_blocks))
            assert not set(held) & unused
            assert not (set(held) | unused) & set(ledger._free_blocks)
            assert len(held) + len(unused) + len(ledger._free_blocks) == ledger.num_blocks
            assert ledger.num_reserved_slots == len(held) * BLOCK_SIZE, "a shared block counts once"
            assert {key: block for block, key in ledger.prefix_cache._keys.items()} == ledger.prefix_cache._blocks


def requests_of(shapes: list[tuple[int, int, int, str]]) -> list[Request]:
    requests = []
    for arrival, (common, own, limit, salt) in enumerate(shapes):
        prompt = (*range(common), *range(1000 + 100 * arrival, 1000 + 100 * arrival + own))
        requests.append(Request(str(arrival), arrival, prompt, limit, cache_salt=salt))
    return requests


@given(configs, shapes, st.integers(8, 20), scripts, st.integers(1, 2), st.sampled_from(sorted(LEDGERS)))
def test_shared_blocks_contain_what_their_holders_would_compute(config, shapes, num_blocks, script, pipelines, policy):
    """Under arrivals, cancels, rewinds, preemption and changes of the policy, with evictions: the pools are small."""
    engine = Engine(config, requests_of(shapes), num_blocks, pipelines, LEDGERS[policy])
    for step in script:
        engine.step(*step)
    engine.drain()


def run(requests: list[Request], num_blocks: int = 64, policy: type[KvLedger] = KvLedger, **options: int) -> Engine:
    engine = Engine(
        SchedulerConfig(**({"max_batch_size": 8, "n_workers": 1} | options)), requests, num_blocks, 1, policy
    )
    engine.drain()
    return engine


@pytest.mark.parametrize("policy", [KvLedger, PagedLedger])
def test_requests_of_one_iteration_compute_their_common_prefix_once(policy: type[KvLedger]):
    prompt = tuple(range(40))
    engine = run([Request(str(arrival), arrival, prompt, 1) for arrival in range(4)], policy=policy)
    assert engine.workers["p0"].num_computed == 40 + 3 * 8
    assert [request.num_cached for request in engine.requests] == [0, 32, 32, 32]


def test_the_last_token_of_a_prompt_is_computed_also_if_its_block_is_cached():
    engine = run([Request(str(arrival), arrival, tuple(range(32)), 1) for arrival in range(2)], max_batch_size=1)
    assert [request.num_cached for request in engine.requests] == [0, 16]


def test_a_chunked_prompt_is_shared_as_far_as_it_is_computed():
    prompt = tuple(range(80))
    engine = run([Request(str(arrival), arrival, prompt, 1) for arrival in range(2)], token_budget=48)
    assert engine.requests[1].num_cached == 64, "the second one is admitted when 80 tokens are dispatched"


def test_a_prompt_in_chunks_is_computed_once_while_other_stages_are_free():
    """Four choices, four stages: the others wait for the next part of the prompt instead of computing it beside."""
    prompt = tuple(range(200))
    choices = [Request(str(arrival), arrival, prompt, 1) for arrival in range(4)]
    other = Request("other", 4, tuple(range(500, 510)), 1)
    engine = Engine(SchedulerConfig(8, 4, 64, balanced=False), [*choices, other], 64, 1, KvLedger)
    for request in engine.requests:
        engine.step("arrive", request.arrival)
    assert engine.schedule("p0")
    assert engine.schedule("p0")
    second = engine.in_flight["p0"][1][0]
    assert [scheduled.request for scheduled in second.requests] == [other], "the others' next block is being computed"
    engine.drain()
    assert engine.workers["p0"].num_computed == len(prompt) + 3 * 8 + 10


def test_a_request_whose_leader_is_cancelled_computes_the_rest_of_the_prompt():
    first, second = (Request(str(arrival), arrival, tuple(range(100)), 1) for arrival in range(2))
    engine = Engine(SchedulerConfig(8, 2, 48, balanced=False), [first, second], 64, 1, KvLedger)
    for step, index in (("arrive", 0), ("schedule", 0), ("arrive", 0), ("cancel", 0), ("schedule", 0)):
        engine.step(step, index)
    assert second.num_cached == 48
    engine.drain()


def test_an_answer_is_a_prefix_of_the_next_turn():
    first = Request("0", 0, tuple(range(20)), 30)
    engine = run([first])
    second = Request("1", 1, (*first.prompt, *first.generated, 7, 7), 1)
    engine.requests.append(second)
    engine.drain()
    assert second.num_cached == 48


def test_requests_with_different_salts_share_nothing():
    engine = run([Request(str(arrival), arrival, tuple(range(40)), 1, cache_salt=str(arrival)) for arrival in range(3)])
    assert [request.num_cached for request in engine.requests] == [0, 0, 0]


def test_the_least_recently_used_blocks_leave_first_and_the_end_of_a_prefix_before_its_beginning():
    old, recent, large = (Request(str(n), n, tuple(range(100 * n, 100 * n + 48)), 1) for n in range(3))
    engine = run([old, recent], num_blocks=9, max_batch_size=1)
    engine.requests.append(large)
    engine.drain()
    assert engine.num_evictions == 1
    ledger = engine.scheduler.ledger("p0")
    again = [Request("x", 3, (*request.prompt, 5), 1) for request in (old, recent, large)]
    assert [len(ledger.cached_blocks(request)) for request in again] == [2, 3, 3]


def test_a_block_in_use_is_never_evicted_and_counts_once():
    ledger = KvLedger(6, PrefixCache())
    first, second, third = (Request(str(n), n, (*range(32), 90 + n), 10) for n in range(3))
    ledger.admit(first)
    ledger.note_contents(first, 33)
    assert ledger.blocks_to_admit(first) == 1, "two of three blocks are held already"
    ledger.admit(second, 2, ledger.hold_shared(second, 2))
    assert ledger.num_reserved_slots == 4 * BLOCK_SIZE
    ledger.release(first)
    assert ledger.num_reserved_slots == 3 * BLOCK_SIZE, "the second one holds the common blocks"
    ledger.release(second)
    assert ledger.num_free_blocks == 6
    assert ledger.blocks_to_admit(third) == 3, "unused blocks are free blocks"
    other = Request("o", 9, tuple(range(500, 580)), 10)
    ledger.admit(other)
    assert len(ledger.cached_blocks(third)) == 0, "6 blocks of 6 are held by the other"


def test_the_counts_of_a_batch_are_those_of_its_admissions():
    engine = Engine(SchedulerConfig(8, 1), [Request(str(n), n, tuple(range(40)), 2) for n in range(2)], 9, 1, KvLedger)
    for request in engine.requests:
        engine.scheduler.pool.add(request)
    batch = engine.scheduler.dispatch("p0", engine.scheduler.select("p0"))
    assert batch.cache_use == CacheUse(num_queried=80, num_hits=32, num_evictions=0)
    assert engine.scheduler.ledger("p0").collect_cache_use() == CacheUse(), "each is counted once"


def test_a_rewound_request_finds_the_blocks_that_it_has_computed():
    scheduler = Scheduler(SchedulerConfig(8, 1), RequestPool(9, 999))
    scheduler.add_pipeline("p", PagedLedger(8, PrefixCache()))
    request = Request("r", 0, tuple(range(40)), 3)
    scheduler.pool.add(request)
    scheduler.commit(scheduler.dispatch("p", scheduler.select("p")), [7])
    scheduler.rewind(request)
    (selection,) = scheduler.select("p").selections
    assert (selection.num_shared_blocks, selection.num_tokens) == (2, 41 - 2 * BLOCK_SIZE)


def test_without_a_prefix_cache_nothing_is_shared():
    ledger = KvLedger(8)
    first, second = (Request(str(n), n, tuple(range(40)), 1) for n in range(2))
    ledger.admit(first)
    ledger.note_contents(first, 40)
    assert ledger.cached_blocks(second) == []
    assert ledger.blocks_to_admit(second) == 3


@pytest.mark.exhaustive
@settings(max_examples=2000)
@given(configs, shapes, st.integers(8, 14), scripts, st.integers(1, 2), st.sampled_from(sorted(LEDGERS)))
def test_two_thousand_histories_of_shared_blocks(config, shapes, num_blocks, script, pipelines, policy):
    test_shared_blocks_contain_what_their_holders_would_compute.hypothesis.inner_test(
        config, shapes, num_blocks, script, pipelines, policy
    )
