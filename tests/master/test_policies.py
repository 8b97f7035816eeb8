"""The order of requests: by arrival, or by priority with ageing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.engine.config import EngineConfig
from orca_master.errors import RequestError
from orca_master.scheduling.policies import AGEING_SECONDS, MOST_LEVELS, POLICIES, by_arrival, by_priority
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation

arrivals = st.floats(0, 1e6)
priorities = st.integers(-(2**31), 2**31 - 1)


def request(arrival: int, arrived_at: float = 0.0, priority: int = 0) -> Request:
    return Request(str(arrival), arrival, (1,), 1, priority=priority, arrived_at=arrived_at)


def order(policy: str, *requests: Request) -> list[int]:
    """Arrivals in the order in which the pool offers requests."""
    pool = RequestPool(100, 1000, POLICIES[policy])
    for entry in requests:
        pool.add(entry)
    return [entry.arrival for entry in pool]


def test_first_come_first_served_ignores_priorities():
    assert order("fcfs", request(0, 0.0, 5), request(1, 1.0, -5)) == [0, 1]


def test_a_smaller_priority_goes_first_and_equal_ones_by_arrival():
    assert order("priority", request(0, 0.0, 5), request(1, 1.0, -5), request(2, 1.0, -5)) == [1, 2, 0]


def test_waiting_makes_up_for_priority():
    late = AGEING_SECONDS + 1
    assert order("priority", request(0, 0.0, 1), request(1, late, 0), request(2, 1.0, 0)) == [2, 0, 1]
    assert order("priority", request(0, 0.0, 2**31 - 1), request(1, (MOST_LEVELS + 1) * late)) == [0, 1], "bounded"


@given(arrivals, arrivals, priorities)
def test_of_equal_priority_the_earlier_goes_first(first, second, priority):
    earlier, later = request(0, min(first, second), priority), request(1, max(first, second), priority)
    assert by_priority(earlier) < by_priority(later)
    assert by_arrival(earlier) < by_arrival(later)


def test_an_engine_serves_the_urgent_request_first():
    """One request at a time, three that wait: the last to come is the most urgent."""

    async def scene(made: Engine) -> None:
        for index, priority in enumerate((0, 2, 1, -1)):
            made.engine.submit(made.submission(f"r{index}", (index + 1,), 4, priority=priority))
        await made.engine.start()
        assert await made.collect(4) == {f"r{index}": continuation((index + 1,), 4) for index in range(4)}
        firsts = [s.request.request_id for _, batch in made.batches for s in batch.requests if s.admitted]
        assert firsts == ["r3", "r0", "r2", "r1"]

    play(lambda: Engine(topology("a"), EngineConfig(max_batch_size=1, scheduling_policy="priority"), 1), scene)


@pytest.mark.parametrize("lookahead", [True, False])
def test_an_urgent_request_runs_at_once_also_if_the_batch_is_full(lookahead):
    """Two requests fill the batch, and one of them pauses for the urgent one. An iteration under way is not undone."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        for name in ("r0", "r1"):
            made.engine.submit(made.submission(name, (1, 2), 40, priority=5))
        await made.until(lambda: made.engine.snapshot.num_iterations > 4)
        made.engine.submit(made.submission("urgent", (3,), 4, priority=-5))
        before = len(made.batches)
        assert await made.collect(3) == {
            "r0": continuation((1, 2), 40), "r1": continuation((1, 2), 40), "urgent": continuation((3,), 4)
        }  # fmt: skip
        served = [index for index, (_, batch) in enumerate(made.batches)
                  if any(scheduled.request.request_id == "urgent" for scheduled in batch.requests)]  # fmt: skip
        assert served[0] <= before + 2
        assert served == list(range(served[0], served[0] + 4))

    config = EngineConfig(max_batch_size=2, scheduling_policy="priority", lookahead=lookahead)
    play(lambda: Engine(topology("a"), config), scene)


def test_a_priority_is_refused_where_nobody_reads_it():
    async def scene(made: Engine) -> None:
        with pytest.raises(RequestError, match="--scheduling-policy priority") as refused:
            made.engine.submit(made.submission("r", (1,), 4, priority=1))
        assert refused.value.field == "priority"
        await made.engine.start()

    play(lambda: Engine(topology("a")), scene)
