"""What stages wait for, from the spans of iterations."""

from __future__ import annotations

import pytest
from orca_bench.timeline import StageTime, stage_times


def test_stages_that_are_never_idle_have_no_bubble():
    iterations = [[(number, number + 1), (number + 1, number + 2)] for number in range(5)]
    assert stage_times(iterations) == [StageTime(busy=5), StageTime(busy=5)]
    assert [time.bubble for time in stage_times(iterations)] == [0, 0]


def test_the_second_stage_waits_for_a_slower_first_one():
    iterations = [[(3 * number, 3 * number + 3), (3 * number + 3, 3 * number + 4)] for number in range(4)]
    first, second = stage_times(iterations)
    assert first == StageTime(busy=12)
    assert second == StageTime(busy=4, other_stage=6)
    assert second.bubble == pytest.approx(0.6)


def test_the_first_stage_waits_for_a_result_of_two_iterations_before_and_then_for_the_message():
    iterations = [[(0, 1), (1, 4)], [(1, 2), (4, 7)], [(4.5, 5.5), (7, 10)]]
    first, _ = stage_times(iterations)
    assert first == StageTime(busy=3, other_stage=2, message=0.5), "the result comes at 4"


def test_one_stage_waits_for_messages_only():
    assert stage_times([[(0, 1)], [(1.25, 2)], [(2, 3)]]) == [StageTime(busy=2.75, message=0.25)]
