"""The work ahead of a new request, and the iterations for which requests had to wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from orca_master.scheduling.backlog import Backlog, backlog, leaves_behind
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.policies import by_priority
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig


def request(number: int, prompt: int = 16, answer: int = 48, priority: int = 0) -> Request:
    return Request(f"r{number}", number, [1] * prompt, answer, priority=priority)


def scheduler(num_blocks: int = 1000, config: SchedulerConfig | None = None, **pool: object) -> Scheduler:
    made = Scheduler(config or SchedulerConfig(2, 1, 100), RequestPool(100, 1 << 30, **pool))  # type: ignore[arg-type]
    if num_blocks:
        made.add_pipeline("a", KvLedger(num_blocks))
    return made


def test_requests_begin_at_once_while_places_are_free():
    made = scheduler()
    assert backlog(made) == Backlog()
    made.pool.add(request(0))
    made.pool.add(request(1, prompt=20))
    assert backlog(made) == Backlog(known=36)
    made.pool.add(request(2, prompt=30, answer=5))
    assert backlog(made) == Backlog(66, ((1, 5),), ((0, 48), (0, 48)))
    made.dispatch("a", made.select("a"))
    assert backlog(made) == Backlog(30, ((1, 5),), ((0, 48), (0, 48)))


def test_requests_begin_at_once_while_blocks_are_free():
    made = scheduler(num_blocks=4)  # one request of 64 tokens
    made.pool.add(request(0))
    made.pool.add(request(1))
    assert backlog(made) == Backlog(32, ((1, 48),), ((0, 48),))


def test_what_a_prefix_cache_had_at_the_arrival_is_not_counted():
    made = scheduler()
    made.pool.add(replace(request(0, prompt=100), num_expected_cached=80))
    made.pool.add(request(1, prompt=20))
    assert backlog(made) == Backlog(known=40)
    assert backlog(made, request(2)) == Backlog(known=40)
    made.dispatch("a", made.select("a"))
    assert made.pool.num_known_tokens == 20, "the budget is used up"


def test_each_partition_and_each_pipeline_has_places_and_the_token_budget_bounds_them():
    made = scheduler(config=SchedulerConfig(2, 3, 100))
    for number in range(7):
        made.pool.add(request(number))
    assert backlog(made).left == ((1, 48),)
    made.add_pipeline("b", KvLedger(1000))
    assert backlog(made).left == ()
    made.config = SchedulerConfig(2, 3, 1)
    assert backlog(made).left == ((1, 48),)


def test_without_a_pipeline_the_places_of_one_count():
    made = scheduler(num_blocks=0)
    for number in range(3):
        made.pool.add(request(number))
    assert backlog(made) == Backlog(48, ((1, 48),), ((0, 48), (0, 48)))


def test_rewound_requests_count_with_what_they_have_generated():
    made = scheduler()
    made.pool.add(request(0))
    batch = made.dispatch("a", made.select("a"))
    made.commit(batch, [5])
    made.remove_pipeline("a")
    assert backlog(made) == Backlog(known=17)
    (entry,) = made.pool
    made.cancel(entry)
    assert (made.pool.num_tokens, made.pool.num_known_tokens) == (0, 0)


def test_only_more_urgent_requests_are_ahead():
    made = scheduler(order=by_priority)
    for number in range(6):
        made.pool.add(request(number, prompt=10 + number, priority=number))
    assert backlog(made, request(10, priority=2)) == Backlog(10 + 11 + 12, ((1, 48),), ((0, 48), (0, 48)))
    assert backlog(made, request(10, priority=-1)) == Backlog()
    assert backlog(made, request(10, priority=9)) == backlog(made)


@pytest.mark.parametrize(
    ("made", "prompts", "expected"),
    [
        (scheduler(), [16], False),
        (scheduler(), [16, 16, 16], True),
        (scheduler(num_blocks=4), [16, 16], True),
        (scheduler(), [150], False),
        (scheduler(config=SchedulerConfig(8, 1, 100)), [150, 16], True),
        (scheduler(config=SchedulerConfig(8, 2, None)), [16, 16], False),
    ],
    ids=["alone", "no place", "no block", "alone in chunks", "no budget", "in the batch of the other stage"],
)
def test_an_iteration_leaves_requests_behind(made, prompts, expected):
    for number, prompt in enumerate(prompts):
        made.pool.add(request(number, prompt))
    batch = made.dispatch("a", made.select("a"))
    assert leaves_behind(made, batch) is expected
    if not expected and len(made.pool) == 0:
        made.pool.add(request(99))
        assert leaves_behind(made, batch) is (prompts == [150]), "it has come later, and fits if the budget is not used"
