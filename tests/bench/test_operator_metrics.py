"""What the cost of the operator is read from: its own metrics."""

from __future__ import annotations

import math

from orca_bench.operator_metrics import read
from orca_operator.metrics import Metrics


def test_percentiles_are_bounds_of_the_histogram():
    metrics = Metrics()
    for _ in range(98):
        metrics.count_pass(True, 0.02)
    for seconds in (0.3, 7.0):
        metrics.count_pass(False, seconds)
    found = read(metrics.render().decode())
    assert (found.passes, found.failed, found.writes) == (100, 2, 0)
    assert [found.percentile(percent) for percent in (50, 98, 99, 100)] == [0.025, 0.025, 0.5, 10.0]


def test_a_difference_has_only_what_happened_between_two_samples():
    metrics = Metrics()
    metrics.count_pass(False, 7.0)
    metrics.count_write("patch", "Service")
    before = read(metrics.render().decode())
    assert math.isnan((before - before).percentile(99))
    metrics.count_pass(True, 0.02)
    for kind in ("Service", "Secret", "Secret"):
        metrics.count_write("patch", kind)
    since = read(metrics.render().decode()) - before
    assert (since.passes, since.failed, since.writes) == (1, 0, 3)
    assert since.percentile(99) == 0.025
