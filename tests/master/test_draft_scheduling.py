"""Scheduler, messages, and the rows of model and draft model together: drafts follow from the tokens that are known.

The pools of both models hold tokens in place of keys and values, so a draft shows what the draft model has read.
"""

from __future__ import annotations

import random
from collections import deque

import torch
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.engine.iteration_message import build_iteration
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import LEDGERS
from orca_master.scheduling.lookahead import look_ahead
from orca_master.scheduling.model_drafts import Guesses, ModelDrafts
from orca_master.scheduling.policies import POLICIES
from orca_master.scheduling.prefix_cache import PrefixCache
from orca_master.scheduling.request import FinishReason, Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_protos import engine_pb2 as pb
from orca_worker.draft_rows import DraftRows
from orca_worker.rows import RowTable
from support.token_pools import alone, new_pool, next_token, read

Drafted = list[tuple[int, list[int]]]
"""Index of an entry and the tokens drafted behind it."""


def drafted_token(known: list[int]) -> int:
    """Return the next token, but a wrong one at each fifth position."""
    return next_token(known) if len(known) % 5 else (next_token(known) + 1) % 9


class Worker:
    """Computes iterations in their order; its draft model computes at most `most` tokens in a first step."""

    def __init__(self, num_blocks: int, longest: int, most: int) -> None:
        self.table, self.rows, self.most = RowTable(512, torch.device("cpu")), DraftRows(longest), most
        self.pool, self.draft_pool = new_pool(num_blocks), new_pool(num_blocks)

    def read(self, iteration: pb.Iteration, pool: torch.Tensor) -> list[list[int]]:
        """Write an iteration's tokens to a pool; return the tokens of each row that samples, as the pool has them."""
        batch = self.table.batch(iteration)
        known = read(batch, list(iteration.num_tokens), pool)
        sampling = [each for each, samples in zip(known, iteration.sample, strict=True) if samples]
        if pool is self.pool:
            self.table.keep_sampled(batch, torch.tensor([next_token(each) for each in sampling], dtype=torch.int64))
        return sampling

    def compute(self, iteration: pb.Iteration) -> tuple[list[int], Drafted]:
        sampled = [next_token(known) for known in self.read(iteration, self.pool)]
        self.rows.note(iteration, sampled)
        following, incomplete = self.rows.catch_up(iteration, self.most)
        drafts = incomplete
        while following.row:
            tokens = [drafted_token(known) for known in self.read(following, self.draft_pool)]
            following, incomplete = self.rows.advance(incomplete, tokens)
        return sampled, [(draft.index, draft.tokens) for draft in drafts]


class Run:
    """One scheduler, its requests and its worker, drawn by `dice`."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.num_drafted = dice, 0
        num_blocks, partitions = dice.randint(5, 20), dice.choice([1, 1, 2])
        config = SchedulerConfig(
            dice.randint(1, 4), partitions, dice.choice([None, 3, 16, 40]), True, dice.choice([1, 3, 6]), True
        )
        self.scheduler = Scheduler(config, RequestPool(1000, 10**6))
        cache = PrefixCache() if dice.random() < 0.7 else None
        self.scheduler.add_pipeline("p", LEDGERS[dice.choice(sorted(LEDGERS))](num_blocks, cache))
        self.worker = Worker(num_blocks, dice.choice([512, 40]), dice.choice([5, 24, 300]))
        self.longest = num_blocks * BLOCK_SIZE
        guesses = Guesses()
        self.requests = [self.draw(arrival, guesses) for arrival in range(dice.randint(1, 9))]
        self.waiting = deque(self.requests)
        self.sent: deque[tuple[Batch, list[int], Drafted]] = deque()

    def draw(self, arrival: int, guesses: Guesses) -> Request:
        dice, base = self.dice, self.dice.choice([1, 1, 2])  # two prompts of a beginning share blocks
        prompt = tuple((base * 7 + index) % 9 for index in range(dice.randint(1, 50)))
        request = Request(
            f"r{arrival}",
            arrival,
            prompt,
            min(dice.randint(1, 30), self.longest - len(prompt)),
            SamplingParameters(presence_penalty=dice.choice([0, 0, 0, 1.0])),
            frozenset({0} if dice.random() < 0.5 else ()),
            priority=dice.randint(-3, 3),
        )
        if not request.sampling.reads_history and dice.random() < 0.9:
            request.drafter = ModelDrafts(guesses, len(prompt))
        return request

    def arrive(self) -> None:
        if self.waiting:
            self.scheduler.pool.add(self.waiting.popleft())

    def send(self) -> bool:
        proposal = self.scheduler.select("p")
        if not proposal and self.scheduler.config.n_workers == 1 and len(self.sent) == 1:
            proposal = look_ahead(self.scheduler, self.sent[0][0])
        if not proposal:
            return False
        batch = self.scheduler.dispatch("p", proposal)
        for entry in batch.requests:
            end = entry.context_length + entry.num_inputs + entry.num_drafts
            held = self.scheduler.ledger("p").holding(entry.request).blocks
            assert end <= min(len(held) * BLOCK_SIZE, entry.request.max_tokens)
        self.sent.append((batch, *self.worker.compute(build_iteration(1, 1, batch))))
        return True

    def commit(self) -> None:
        if not self.sent:
            return
        batch, sampled, drafted = self.sent.popleft()
        for _, request in self.scheduler.commit(batch, sampled):
            assert request.generated == alone(request)[: len(request.generated)]
        for index, tokens in drafted:
            entry = batch.entries[index]
            assert len(tokens) <= entry.num_drafts
            if entry.is_stale:
                continue
            known = [*entry.request.prompt, *entry.request.generated]
            for token in tokens:
                assert token == drafted_token(known)
                known.append(token)
            assert entry.request.drafter is not None
            entry.request.drafter.receive(tokens)
            self.num_drafted += len(tokens)

    def disturb(self) -> None:
        """Cancel or rewind a request, or change the policies."""
        request, change = self.dice.choice(self.requests), self.dice.choice([*LEDGERS, *POLICIES, "cancel", "rewind"])
        if change in LEDGERS:
            self.scheduler.set_admission(LEDGERS[change])
        elif change in POLICIES:
            self.scheduler.set_order(POLICIES[change])
        elif change == "rewind" and request in self.scheduler.admitted:
            self.scheduler.rewind(request)
        elif change == "cancel" and request not in self.waiting:
            self.scheduler.cancel(request)

    def drain(self) -> None:
        while self.waiting:
            self.arrive()
        for _ in range(5000):
            while self.send():
                pass
            if not self.sent:
                return
            self.commit()


@given(st.integers(0, 2**32))
def test_drafts_follow_from_the_known_tokens_and_every_request_gets_its_own(seed):
    """With chunks, shared prefixes, preemption, cancels, rewinds, and a draft model with few positions."""
    run = Run(random.Random(seed))
    for _ in range(run.dice.randint(5, 80)):
        run.dice.choices([run.arrive, run.send, run.commit, run.disturb], [2, 4, 4, 1])[0]()
    run.drain()
    for request in run.requests:
        assert request.state is RequestState.FINISHED
        if request.finish_reason is not FinishReason.CANCELLED:
            assert request.generated == alone(request)


def test_some_of_these_runs_draft():
    runs = [Run(random.Random(seed)) for seed in range(20)]
    for run in runs:
        run.drain()
    assert sum(run.num_drafted for run in runs) > 100
