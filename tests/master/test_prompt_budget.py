"""How many tokens of prompts an iteration has beside answers."""

from __future__ import annotations

import pytest
from orca_master.commands.scheduling_options import target_itl
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.policies import by_priority
from orca_master.scheduling.prompt_budget import LEAST_TOKENS, PromptBudget
from orca_master.scheduling.request import Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig


def answering(count: int) -> list[Request]:
    return [
        Request(str(number), number, (1, 2), 9, state=RequestState.INCREMENT, generated=[3], num_computed=2)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("budget", "num_answers", "expected"),
    [
        (PromptBudget(), 4, None),
        (PromptBudget(100), 0, None),
        (PromptBudget(100), 4, 100),
        (PromptBudget(-500), 4, LEAST_TOKENS),
        (PromptBudget(100, 500), 0, 500),
        (PromptBudget(100, 500), 4, 300),
        (PromptBudget(100, 500), 8, 100),
        (PromptBudget(100, 500), 12, 100),
        (PromptBudget(1, 2), 0, LEAST_TOKENS),
    ],
)
def test_the_limit_of_prompts(budget, num_answers, expected):
    assert budget.limit(answering(num_answers), num_places=8) == expected


def test_a_part_of_a_prompt_is_no_answer_and_an_answer_in_flight_is():
    in_prompt = Request("r", 0, tuple(range(40)), 9, state=RequestState.INCREMENT, num_computed=16)
    assert PromptBudget(10).limit([in_prompt], 8) is None
    in_flight = Request(
        "r", 0, (1,), 9, state=RequestState.RUNNING, generated=[3], num_computed=1, num_tokens_in_flight=1
    )
    assert PromptBudget(20).limit([in_flight], 8) == 20


def test_an_urgent_prompt_takes_no_token_of_the_answers():
    scheduler = Scheduler(SchedulerConfig(8, 1, 2048), RequestPool(100, 1 << 20, by_priority))
    scheduler.add_pipeline("p", KvLedger(1000))
    scheduler.prompt_budget = PromptBudget(100)
    answers = [Request(f"answer{number}", number, (1, 2), 50, priority=5) for number in range(3)]
    for request in answers:
        scheduler.pool.add(request)
    batch = scheduler.dispatch("p", scheduler.select("p"))
    scheduler.commit(batch, [7] * 3)
    scheduler.pool.add(Request("urgent", 3, tuple(range(2000)), 5, priority=0))
    for _ in range(5):
        batch = scheduler.dispatch("p", scheduler.select("p"))
        assert batch.is_full
        assert [(entry.request.request_id, entry.num_tokens) for entry in batch.requests] == [
            ("urgent", 100), *((request.request_id, 1) for request in answers)
        ]  # fmt: skip
        scheduler.commit(batch, [7] * sum(entry.samples for entry in batch.requests))


def test_prompts_are_cut_if_the_answers_are_in_the_other_iteration():
    scheduler = Scheduler(SchedulerConfig(8, 2, 2048), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(1000))
    scheduler.prompt_budget = PromptBudget(50)
    scheduler.pool.add(Request("answer", 0, (1, 2), 50))
    scheduler.commit(scheduler.dispatch("p", scheduler.select("p")), [7])
    scheduler.pool.add(Request("long", 1, tuple(range(5000)), 5))
    batches = [scheduler.dispatch("p", scheduler.select("p")) for _ in range(2)]
    assert [[entry.num_tokens for entry in batch.requests] for batch in batches] == [[1], [50]]


def test_prompts_alone_are_cut_if_all_stages_have_work_to_share():
    scheduler = Scheduler(SchedulerConfig(8, 2, 2048), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(1000))
    scheduler.prompt_budget = PromptBudget(beside_answers=20, alone=100)
    scheduler.pool.add(Request("long", 0, tuple(range(150)), 5))
    for expected in (150, 100):
        assert [entry.num_tokens for entry in scheduler.select("p").selections] == [expected]
        scheduler.pool.add(Request(f"other {expected}", 1, tuple(range(30)), 5))
    scheduler.dispatch("p", scheduler.select("p"))
    assert [entry.num_tokens for entry in scheduler.select("p").selections] == [30, 30]


def test_a_prompt_that_joins_answers_is_cut_and_ends():
    scheduler = Scheduler(SchedulerConfig(8, 1, 2048), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(100))
    scheduler.prompt_budget = PromptBudget(30)
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


def test_one_partition_has_a_target_by_default():
    """The parts of prompts of several ones take equally long without a target."""
    assert [target_itl(None, 1), target_itl(None, 2)] == [0.2, None]
    assert [target_itl(0.0, 1), target_itl(50.0, 1), target_itl(50.0, 2)] == [None, 0.05, 0.05]
