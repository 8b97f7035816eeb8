"""Latencies in constant memory."""

from __future__ import annotations

import math
import random

import pytest
from orca_bench.latency import Histogram, Interval
from orca_bench.random_load import Asked


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99, 1.0])
def test_quantiles_are_within_one_percent(fraction):
    drawn = random.Random(1)
    values = [drawn.lognormvariate(-3, 2) for _ in range(20_000)]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(fraction * len(values)) - 1]
    assert histogram.quantile(fraction) == pytest.approx(exact, rel=0.0101)
    assert histogram.longest == max(values)


def test_without_values_there_is_no_quantile():
    assert math.isnan(Histogram().quantile(0.5))
    assert math.isnan(Histogram().longest)


def test_a_value_of_zero_is_counted():
    histogram = Histogram()
    histogram.add(0.0)
    assert histogram.quantile(0.5) == pytest.approx(1e-6, rel=0.01)


def test_each_request_is_counted_once_by_its_end():
    interval = Interval()
    interval.add(Asked(0.0, [1.0, 1.5, 3.5], ended=4.0))
    interval.add(Asked(0.0, [3.0], ended=4.0, cancelled=True))
    interval.add(Asked(0.0, ended=4.0, retry_after=2))
    interval.add(Asked(0.0, [1.0], ended=4.0, error="HTTP 500"))
    figures = interval.figures()
    assert [figures[f"{kind} requests"] for kind in ("completed", "cancelled", "refused", "failed")] == [1, 1, 1, 1]
    assert figures["TTFT p50 (ms)"] == pytest.approx(1000, rel=0.0101)
    assert figures["TTFT p99 (ms)"] == pytest.approx(3000, rel=0.0101)
    assert figures["time between tokens p50 (ms)"] == pytest.approx(500, rel=0.0101)
    assert figures["time between tokens, longest (ms)"] == 2000


def test_the_line_of_an_interval_has_only_what_happened():
    interval = Interval()
    interval.add(Asked(0.0, [1.0], ended=4.0, cancelled=True))
    assert str(interval).startswith("cancelled requests 1, TTFT p50 (ms) ")
    assert "failed" not in str(interval)
