"""The margin follows the quantile of the errors, within its bounds."""

from __future__ import annotations

import math
import random

import pytest
from orca_master.engine.wait_margin import MOST, QUANTILE, WaitMargin

BOUND = 10.0


def after(errors: list[float], bound: float = BOUND) -> WaitMargin:
    margin = WaitMargin()
    for late in errors:
        margin.note(late, bound)
    return margin


@pytest.mark.parametrize(("least", "most"), [(0.0, 1.0), (-3.0, 3.0), (2.0, 4.0)])
def test_the_margin_is_near_the_quantile(least, most):
    drawn = random.Random(1)
    errors = [drawn.uniform(least, most) for _ in range(20_000)]
    assert after(errors).seconds(BOUND) == pytest.approx(least + QUANTILE * (most - least), abs=0.3)


def test_requests_that_do_not_wait_longer_than_expected_need_no_margin():
    assert after([-1.0, 0.0] * 100).seconds(BOUND) == 0.0


def test_one_pause_of_the_machine_is_forgotten():
    paused = [0.0] * 1000 + [4.0] * 30
    assert 0.5 < after(paused).seconds(BOUND) < 4.0
    assert after(paused + [0.0] * 5000).seconds(BOUND) == 0.0


def test_the_margin_is_at_most_the_lateness_however_long_the_bound():
    assert after([0.01] * 10, 3600.0).seconds(3600.0) == 0.01


def test_some_requests_are_always_accepted():
    margin = after([1e9] * 1000)
    assert margin.seconds(BOUND) == MOST * BOUND
    assert margin.seconds(1.0) == MOST


def test_without_a_bound_there_is_nothing_to_keep():
    assert after([5.0] * 1000, math.inf).seconds(math.inf) == 0.0
