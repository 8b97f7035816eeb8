"""How many tokens of prompts an iteration has beside answers."""

from __future__ import annotations

from collections import deque

import pytest
from orca_master.commands.scheduling_options import target_itl
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.policies import by_priority
from orca_master.scheduling.prefix_cache import PrefixCache
from orca_master.scheduling.prompt_budget import LEAST_TOKENS, PromptBudget
from orca_master.scheduling.request import Request, RequestState, ServiceClass
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig

CONFIG = SchedulerConfig(max_batch_size=8, n_workers=1)


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
    assert budget.limit(answering(num_answers), 2, CONFIG) == expected


def test_a_part_of_a_prompt_is_no_answer_and_an_answer_in_flight_is():
    in_prompt = Request("r", 0, tuple(range(40)), 9, state=RequestState.INCREMENT, num_computed=16)
    assert PromptBudget(10).limit([in_prompt], 1, CONFIG) is None
    in_flight = Request(
        "r", 0, (1,), 9, state=RequestState.RUNNING, generated=[3], num_computed=1, num_tokens_in_flight=1
    )
    assert PromptBudget(20).limit([in_flight], 1, CONFIG) == 20


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


def test_prompts_without_answers_are_cut_if_another_request_or_stage_has_work_meanwhile():
    for stages in (1, 2):
        scheduler = Scheduler(SchedulerConfig(8, stages, 2048), RequestPool(100, 1 << 20))
        scheduler.add_pipeline("p", KvLedger(1000))
        scheduler.prompt_budget = PromptBudget(beside_answers=20, alone=100)
        scheduler.pool.add(Request("long", 0, tuple(range(150)), 5))
        assert [entry.num_tokens for entry in scheduler.select("p").selections] == [150 if stages == 1 else 50]
        for number in (1, 2):
            scheduler.pool.add(Request(f"other {number}", number, tuple(range(30)), 5))
            assert [entry.num_tokens for entry in scheduler.select("p").selections] == [100]


def test_behind_enough_prompts_that_end_no_further_one_begins():
    scheduler = Scheduler(SchedulerConfig(8, 1, 2048), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(1000))
    scheduler.prompt_budget = PromptBudget(500, enough=60)
    for number, length in enumerate((50, 40, 200, 50)):
        scheduler.pool.add(Request(str(number), number, tuple(range(length)), 9))
    batches = []
    for _ in range(3):
        batch = scheduler.dispatch("p", scheduler.select("p"))
        batches.append([entry.num_tokens for entry in batch.requests])
        scheduler.commit(batch, [7] * len(batch.requests))
        assert batch.is_full is (len(batches) < 3), "a request waits because the iteration has no tokens left"
    assert batches == [[50, 40], [1, 1, 200], [1, 1, 1, 50]]


def test_a_prompt_that_does_not_end_and_texts_to_embed_leave_room_for_others():
    scheduler = Scheduler(SchedulerConfig(8, 1, 100), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(1000))
    scheduler.prompt_budget = PromptBudget(500, enough=20)
    for number in range(3):
        scheduler.pool.add(Request(str(number), number, tuple(range(30)), 0, pooling="mean"))
    scheduler.pool.add(Request("long", 3, tuple(range(300)), 9))
    assert [entry.num_tokens for entry in scheduler.select("p").selections] == [30, 30, 30, 10]


def test_stages_compute_parts_of_one_prompt_at_the_same_time():
    scheduler = Scheduler(SchedulerConfig(8, 3), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(1000))
    scheduler.prompt_budget = PromptBudget(alone=300)
    scheduler.pool.add(request := Request("long", 0, tuple(range(350)), 1))
    batches = [scheduler.dispatch("p", scheduler.select("p")) for _ in range(3)]
    assert not scheduler.select("p"), "one iteration per stage is in flight"
    for batch in batches:
        scheduler.commit(batch, [7] * sum(entry.samples for entry in batch.requests))
        batches += [scheduler.dispatch("p", proposal)] if (proposal := scheduler.select("p")) else []
    (entries,) = zip(*(batch.requests for batch in batches), strict=True)
    assert [(entry.context_length, entry.num_tokens, entry.samples) for entry in entries] == [
        (0, 100, False), (100, 100, False), (200, 100, False), (300, 50, True)
    ]  # fmt: skip
    assert request.num_computed == 350


def test_another_request_comes_before_the_next_part_of_a_prompt():
    scheduler = Scheduler(SchedulerConfig(2, 2), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(1000))
    scheduler.prompt_budget = PromptBudget(beside_answers=100, alone=100)
    scheduler.pool.add(Request("long", 0, tuple(range(350)), 5))
    scheduler.dispatch("p", scheduler.select("p"))
    scheduler.pool.add(Request("short", 1, tuple(range(40)), 5))
    assert [entry.request.request_id for entry in scheduler.select("p").selections] == ["short"]
    scheduler.pool.add(Request("third", 2, tuple(range(10)), 5))
    assert [(entry.request.request_id, entry.num_tokens) for entry in scheduler.select("p").selections] == [
        ("short", 40), ("third", 10)
    ]  # fmt: skip


def test_the_next_part_of_a_prompt_delays_no_answer():
    scheduler = Scheduler(SchedulerConfig(8, 3), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(1000))
    scheduler.prompt_budget = PromptBudget(alone=300)
    scheduler.pool.add(answer := Request("answer", 0, tuple(range(40)), 2))
    scheduler.commit(scheduler.dispatch("p", scheduler.select("p")), [7])
    scheduler.pool.add(Request("long", 1, tuple(range(3000)), 5))
    batches = [scheduler.dispatch("p", scheduler.select("p")) for _ in range(2)]
    assert [[entry.request.request_id for entry in batch.requests] for batch in batches] == [["answer"], ["long"]]
    assert not scheduler.select("p")
    scheduler.commit(batches[0], [7])
    assert answer.state is RequestState.FINISHED
    assert [entry.request.request_id for entry in scheduler.select("p").selections] == ["long"]


def test_a_prompt_that_arrives_later_does_not_overtake_the_parts_of_an_earlier_one_for_long():
    """A prompt of nearly the limit comes with each result; all stages had parts of the first prompt before."""
    scheduler = Scheduler(SchedulerConfig(8, 4), RequestPool(10_000, 1 << 30))
    scheduler.add_pipeline("p", KvLedger(100_000))
    scheduler.prompt_budget = PromptBudget(beside_answers=100, alone=100)
    scheduler.pool.add(first := Request("first", 0, tuple(range(4000)), 1))
    in_flight, iterations = deque[Batch](), 0
    while first.finish_reason is None:
        while proposal := scheduler.select("p"):
            in_flight.append(scheduler.dispatch("p", proposal))
        batch, iterations = in_flight.popleft(), iterations + 1
        scheduler.commit(batch, [7] * sum(entry.samples for entry in batch.requests))
        scheduler.pool.add(Request(str(iterations), iterations, tuple(range(99)), 1))
        assert iterations < 200, "40 parts, one in four iterations"


def test_an_interactive_request_does_not_wait_for_the_prefix_of_a_batch():
    """The request of a batch computes the prefix; other prompts of nearly the limit come with each result."""
    scheduler = Scheduler(SchedulerConfig(8, 2), RequestPool(10_000, 1 << 30))
    scheduler.add_pipeline("p", KvLedger(100_000, PrefixCache()))
    scheduler.prompt_budget = PromptBudget(beside_answers=100, alone=100)
    scheduler.pool.put_back(Request("line", 0, tuple(range(4000)), 1, service_class=ServiceClass.BATCH))
    urgent = Request("urgent", 1, tuple(range(3900)), 1)
    in_flight, iterations = deque[Batch](), 0
    while urgent.state is RequestState.INITIATION:
        while proposal := scheduler.select("p"):
            in_flight.append(scheduler.dispatch("p", proposal))
        batch, iterations = in_flight.popleft(), iterations + 1
        scheduler.commit(batch, [7] * sum(entry.samples for entry in batch.requests))
        other = range(10_000 * iterations, 10_000 * iterations + 99)
        scheduler.pool.add(Request(str(iterations), iterations + 1, tuple(other), 1))
        if iterations == 20:
            scheduler.pool.add(urgent)
        assert iterations < 40, "the prefix has 39 parts"


def test_without_balanced_batches_a_request_is_in_one_iteration():
    """As in the printed algorithm."""
    scheduler = Scheduler(SchedulerConfig(8, 2, 100, balanced=False), RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(1000))
    scheduler.pool.add(Request("long", 0, tuple(range(350)), 5))
    scheduler.dispatch("p", scheduler.select("p"))
    assert not scheduler.select("p")


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
