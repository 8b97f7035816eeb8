"""The measured cost of a row."""

from __future__ import annotations

import random

import pytest
from orca_master.engine.row_cost import LEAST, MOST, RowCost
from orca_master.scheduling.speculation import ROW_COST


@pytest.mark.parametrize("cost", [0.02, 0.2, 0.7])
def test_the_ratio_is_that_of_the_iterations(cost):
    measured, drawn = RowCost(), random.Random(1)
    for _ in range(300):
        rows = drawn.choice([1, 4, 9, 16])
        measured.note(0.05 * (1 + cost * rows) * drawn.uniform(0.98, 1.02), rows)
    assert measured.ratio == pytest.approx(cost, rel=0.15)


def test_iterations_of_nearly_as_many_rows_change_nothing():
    measured, drawn = RowCost(), random.Random(1)
    for _ in range(300):
        measured.note(drawn.uniform(0.04, 0.06), drawn.choice([16, 16, 16, 15]))
    assert measured.ratio == ROW_COST


def test_the_ratio_has_bounds():
    free, full = RowCost(), RowCost()
    for rows in (1, 16) * 20:
        free.note(0.05, rows)
        full.note(0.05 * rows, rows)
    assert (free.ratio, full.ratio) == (LEAST, MOST)
