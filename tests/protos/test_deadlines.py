"""The master always waits longer than the controller, so that the one who knows the silent rank answers first."""

from __future__ import annotations

import pytest
from orca_protos import deadlines
from orca_protos.deadlines import MARGIN_SECONDS, Bound, form, warmup

BOUNDS = [value for value in vars(deadlines).values() if isinstance(value, Bound)]


def test_there_are_bounds():
    assert len(BOUNDS) >= 3


@pytest.mark.parametrize("bound", [*BOUNDS, form(600.0), warmup(0.5)])
def test_the_master_waits_longer_than_the_controller(bound):
    assert bound.master == bound.worker + MARGIN_SECONDS > bound.worker > 0


def test_bounds_of_calls_follow_their_own_time_outs():
    assert form(100.0).worker > 100.0
    assert warmup(100.0).worker > 100.0
    assert deadlines.FAULTS_SECONDS > deadlines.COLD_FAULTS_SECONDS
