"""One iteration ahead: the tokens are those of each request alone, whatever ends, is cancelled or rewound meanwhile.

The worker here is a real `RowTable` over real wire messages, with a memory of tokens by slot: it computes a request's
next token from what its slots hold, so that a block which is reused too early shows.
"""

from __future__ import annotations

from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.engine.iteration_message import build_iteration
from orca_master.scheduling.batch import Batch, Proposal
from orca_master.scheduling.kv_ledger import LEDGERS
from orca_master.scheduling.lookahead import look_ahead
from orca_master.scheduling.policies import POLICIES, by_priority
from orca_master.scheduling.request import Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_master.scheduling.speculation import MOST_ROWS
from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN
from orca_worker.rows import RowTable
from support.draft_oracle import DraftOracle, ModelOracle, draft_after
from support.token_pools import alone, new_pool, next_token, read

STOP = 0
SWITCHES = (*LEDGERS, *POLICIES)


class Worker:
    """Computes iterations in their order."""

    def __init__(self, num_blocks: int) -> None:
        self.rows = RowTable(256, torch.device("cpu"))
        self.pool = new_pool(num_blocks)

    def compute(self, iteration: pb.Iteration) -> list[int]:
        batch = self.rows.batch(iteration)
        known = read(batch, list(iteration.num_tokens), self.pool)
        tokens = [next_token(each) for each, samples in zip(known, iteration.sample, strict=True) if samples]
        self.rows.keep_sampled(batch, torch.tensor(tokens, dtype=torch.int64))
        return tokens


class Run:
    """A scheduler that looks ahead, and its worker: iterations are sent, computed and committed in order."""

    def __init__(self, requests: list[Request], config: SchedulerConfig, num_blocks: int, admission: str) -> None:
        self.requests = requests
        self.waiting = deque(requests)
        self.scheduler = Scheduler(config, RequestPool(1000, 10**6))
        self.scheduler.add_pipeline("p", LEDGERS[admission](num_blocks))
        self.worker = Worker(num_blocks)
        self.sent: deque[tuple[Batch, pb.Iteration]] = deque()
        self.computed: deque[tuple[Batch, list[int]]] = deque()
        self.num_ahead = self.num_sent = 0

    def arrive(self) -> None:
        if self.waiting:
            self.scheduler.pool.add(self.waiting.popleft())

    def send(self) -> bool:
        in_flight = [batch for batch, _ in [*self.computed, *self.sent]]
        proposal = self.scheduler.select("p")
        assert not (proposal and in_flight)
        if len(in_flight) == 1:
            proposal = look_ahead(self.scheduler, in_flight[0])
            assert proposal == look_ahead(self.scheduler, in_flight[0]), "it changes nothing"
            self.num_ahead += bool(proposal)
        return bool(proposal) and self.dispatch(proposal)

    def dispatch(self, proposal: Proposal) -> bool:
        ahead = bool(self.sent or self.computed)
        batch = self.scheduler.dispatch("p", proposal)
        iteration = build_iteration(1, 1, batch)
        assert list(iteration.token).count(PENDING_TOKEN) == (len(batch.requests) if ahead else 0)
        ledger = self.scheduler.ledger("p")
        for scheduled in batch.requests:
            blocks = ledger.holding(scheduled.request).blocks
            end = scheduled.context_length + scheduled.num_tokens + len(scheduled.draft) + scheduled.num_drafts
            assert end <= min(len(blocks) * BLOCK_SIZE, scheduled.request.max_tokens)
        self.sent.append((batch, iteration))
        self.num_sent += 1
        return True

    def compute(self) -> None:
        if self.sent:
            batch, iteration = self.sent.popleft()
            self.computed.append((batch, self.worker.compute(iteration)))

    def commit(self) -> None:
        if self.computed:
            batch, tokens = self.computed.popleft()
            for _, request in self.scheduler.commit(batch, tokens):
                assert request.generated == alone(request)[: len(request.generated)]
            draft_after(batch)

    def drain(self) -> None:
        while self.waiting:
            self.arrive()
        for _ in range(10_000):
            while self.send():
                pass
            if not self.sent and not self.computed:
                break
            self.compute()
            self.commit()
        ledger = self.scheduler.ledger("p")
        assert (ledger.num_holders, len(self.scheduler.pool)) == (0, 0)
        assert ledger.num_free_blocks == ledger.num_blocks


shapes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=8)


def requests_of(shapes: list[tuple[int, int]], *stop: int) -> list[Request]:
    return [
        Request(
            f"r{arrival}",
            arrival,
            tuple((arrival * 7 + index) % 9 for index in range(length)),
            limit,
            stop_token_ids=frozenset(stop),
            priority=arrival * 5 % 7 - 3,
        )
        for arrival, (length, limit) in enumerate(shapes)
    ]


@given(
    shapes=shapes,
    size=st.integers(1, 4),
    budget=st.sampled_from([None, 3, 16]),
    num_blocks=st.integers(5, 14),
    admission=st.sampled_from(sorted(LEDGERS)),
    speculative_tokens=st.sampled_from([0, 0, 1, 5]),
    script=st.lists(
        st.tuples(
            st.sampled_from(["arrive", "send", "compute", "commit", "cancel", "rewind", *SWITCHES]), st.integers(0, 7)
        ),
        max_size=60,
    ),
)
def test_every_request_gets_its_own_tokens(shapes, size, budget, num_blocks, admission, speculative_tokens, script):
    requests = requests_of(shapes, STOP)
    for index, request in enumerate(requests):
        if speculative_tokens and (oracle := (DraftOracle, ModelOracle, None)[index % 3]):
            request.drafter = oracle(request, alone(request))
    config = SchedulerConfig(size, 1, budget, balanced=True, speculative_tokens=speculative_tokens)
    run = Run(requests, config, num_blocks, admission)
    for step, number in script:
        request = requests[number % len(requests)]
        held = request.request_id in run.scheduler._pipeline_of
        if step == "cancel" and request not in run.waiting:
            run.scheduler.cancel(request)
        elif step == "rewind" and held:
            run.scheduler.rewind(request)
        elif step in LEDGERS:
            run.scheduler.set_admission(LEDGERS[step])
        elif step in POLICIES:
            run.scheduler.set_order(POLICIES[step])
        elif step not in ("cancel", "rewind"):
            getattr(run, step)()
    run.drain()
    for request in requests:
        assert request.state is RequestState.FINISHED
        whole = alone(request)
        assert request.generated == whole[: len(request.generated)]
        if request.finish_reason is not None and request.finish_reason.value != "cancelled":
            assert request.generated == whole


def test_a_batch_that_goes_on_is_always_ahead():
    run = Run(requests_of([(5, 12), (9, 12)]), SchedulerConfig(4, 1, None, balanced=True), 20, "reserve")
    run.arrive()
    run.arrive()
    run.drain()
    assert [len(request.generated) for request in run.requests] == [12, 12]
    assert run.num_ahead == 11, "all but the first, which is a prompt's, follow unseen"


def test_who_waits_and_may_join_is_not_kept_waiting():
    run = Run(requests_of([(5, 12), (9, 12), (3, 2)]), SchedulerConfig(2, 1, None, balanced=True), 20, "reserve")
    run.arrive()
    assert run.send()
    run.arrive()
    assert not run.send(), "the second joins the next iteration"
    run.compute()
    run.commit()
    assert run.send()
    run.arrive()
    assert run.send(), "the batch is full: the third cannot join"


def test_who_may_join_behind_a_request_for_a_larger_pipeline_is_not_kept_waiting():
    long, short = 40 * BLOCK_SIZE, 2
    run = Run(requests_of([(5, 12), (9, long), (3, short)]), SchedulerConfig(2, 1, None, balanced=True), 20, "reserve")
    run.arrive()
    assert run.send()
    run.arrive()
    assert run.send(), "no place here is large enough for the second"
    run.compute()
    run.commit()
    run.arrive()
    assert not run.send(), "the third joins the next iteration"
    while run.sent or run.computed:
        run.compute()
        run.commit()
    assert run.send()
    batch, _ = run.sent[0]
    assert [scheduled.request.request_id for scheduled in batch.requests] == ["r0", "r2"]


def test_nothing_is_sent_ahead_of_who_is_more_urgent_under_another_policy():
    """The batch in flight has the order of the earlier policy, so its last request is not the least urgent."""
    requests = requests_of([(5, 12), (9, 12), (3, 2)])
    for request, priority in zip(requests, (2, -2, 0), strict=True):
        request.priority = priority
    run = Run(requests, SchedulerConfig(2, 1, None, balanced=True), 20, "reserve")
    run.arrive()
    run.arrive()
    assert run.send()
    run.arrive()
    run.scheduler.set_order(by_priority)
    assert not run.send(), "the third pauses the first"
    run.compute()
    run.commit()
    assert run.send()
    batch, _ = run.sent[0]
    assert [scheduled.request.request_id for scheduled in batch.requests] == ["r1", "r2"]
    run.drain()


def test_a_smaller_maximum_holds_from_the_next_iteration_on():
    """The batch in flight has the size of the earlier maximum; nothing that large is sent after it."""
    run = Run(requests_of([(5, 12), (9, 12), (3, 12)]), SchedulerConfig(3, 1, None, balanced=True), 20, "reserve")
    for _ in run.requests:
        run.arrive()
    assert run.send()
    run.scheduler.config = SchedulerConfig(1, 1, None, balanced=True)
    assert not run.send(), "the next batch has one request"
    run.compute()
    run.commit()
    assert run.send()
    batch, _ = run.sent[0]
    assert len(batch.requests) == 1
    run.drain()


@pytest.mark.parametrize("oracle", [DraftOracle, ModelOracle])
def test_who_is_drafted_on_is_not_ahead_and_needs_fewer_iterations(oracle):
    """The iteration behind the prompt is ahead: no token is known from which to draft."""
    requests = requests_of([(5, 12)])
    requests[0].drafter = oracle(requests[0], alone(requests[0]))
    run = Run(requests, SchedulerConfig(2, 1, None, balanced=True, speculative_tokens=2), 20, "reserve")
    run.arrive()
    run.drain()
    assert requests[0].generated == alone(requests[0])
    assert (run.num_ahead, run.num_sent) == (1, 6)


@pytest.mark.parametrize(
    ("size", "budget", "answer", "ahead"),
    [
        (2, None, 12, 1),  # behind the prompts no token is known from which to draft
        (2, 2, 12, 11),
        (MOST_ROWS, None, 5, 4),
    ],
)
def test_where_no_draft_fits_batches_are_ahead(size, budget, answer, ahead):
    requests = requests_of([(1, answer)] * size)
    for request in requests:
        request.drafter = DraftOracle(request, alone(request))
    run = Run(requests, SchedulerConfig(size, 1, budget, balanced=True, speculative_tokens=2), 2 * size, "reserve")
    for _ in requests:
        run.arrive()
    run.drain()
    assert [request.generated for request in requests] == [alone(request) for request in requests]
    assert run.num_ahead == ahead
