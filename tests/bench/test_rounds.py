"""Ratios of rounds."""

from __future__ import annotations

import random

import pytest
from orca_bench.rounds import _num_outside, ratio


def test_the_ratio_is_of_pairs_with_its_bounds():
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == "2.00 x [1.00, 3.00]"


def test_many_rounds_have_the_confidence_interval_of_their_median():
    ratios = [1.0, 1.1, *[1.2] * 4, 1.3, 1.4, 1.5, 1.6]
    assert ratio(ratios, [1.0] * 10) == "1.200 x [1.000, 1.600] (95 %: 1.100 to 1.500)"


@pytest.mark.parametrize("count", [9, 20, 31, 100])
def test_the_interval_contains_the_median_as_often_as_it_says(count):
    drawn, times, outside = random.Random(count), 4_000, _num_outside(count)
    hits = sum(
        values[outside] <= 0.5 <= values[-1 - outside]
        for values in (sorted(drawn.random() for _ in range(count)) for _ in range(times))
    )
    assert 0.94 < hits / times < 0.995
