"""How many tokens of prompts an iteration has beside answers."""

from __future__ import annotations

import pytest
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.prompt_budget import LEAST_TOKENS, iteration_budget
from orca_master.scheduling.request import Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler, SchedulerConfig


def answering(count: int) -> list[Request]:
    return [
        Request(str(number), number, (1, 2), 9, state=RequestState.INCREMENT, generated=[3], num_computed=2)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("token_budget", "prompt_budget", "num_answers", "expected"),
    [
        (2048, None, 4, 2048),
        (2048, 100, 0, 2048),
        (2048, 100, 4, 104),
        (None, 100, 4, 104),
        (None, None, 4, None),
        (64, 100, 4, 64),
        (2048, -500, 4, 4 + LEAST_TOKENS),
    ],
)
def test_the_budget_of_an_iteration(token_budget, prompt_budget, num_answers, expected):
    assert iteration_budget(token_budget, prompt_budget, answering(num_answers)) == expected


def test_a_part_of_a_prompt_is_no_answer():
    in_prompt = Request("r", 0, tuple(range(40)), 9, state=RequestState.INCREMENT, num_computed=16)
    assert iteration_budget(2048, 10, [in_prompt]) == 2048


def test_a_prompt_that_joins_answers_is_cut_and_ends():
    scheduler = Scheduler(SchedulerConfig(8, 1, 2048), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(100))
    scheduler.prompt_budget = 30
    answer, prompt = Request("answer", 0, tuple(range(500)), 50), Request("prompt", 1, tuple(range(100)), 5)

    def iterate() -> list[tuple[str, int]]:
        batch = scheduler.dispatch("p", scheduler.select("p"))
        scheduler.commit(batch, [7] * sum(scheduled.samples for scheduled in batch.requests))
        return [(scheduled.request.request_id, scheduled.num_tokens) for scheduled in batch.requests]

    scheduler.pool.add(answer)
    assert iterate() == [("answer", 500)], "nobody waits for a next token"
    scheduler.pool.add(prompt)
    assert [iterate() for _ in range(5)] == [
        *[[("answer", 1), ("prompt", 30)]] * 3,
        [("answer", 1), ("prompt", 10)],
        [("answer", 1), ("prompt", 1)],
    ]
