"""The line through the latest points."""

from __future__ import annotations

import pytest
from orca_master.engine.moving_line import MovingLine


def test_the_line_goes_through_points_on_a_line():
    line = MovingLine()
    for x in (1, 5, 2, 9):
        line.note(x, 3 + 0.5 * x, 0.9)
    slope = line.slope()
    assert slope == pytest.approx(0.5)
    assert line.constant(0.5) == pytest.approx(3)


def test_points_of_one_x_have_no_slope():
    line = MovingLine()
    assert line.slope() is None
    for y in (1, 2, 3):
        line.note(4, y, 0.9)
    assert line.slope() is None


def test_later_points_count_more():
    line = MovingLine()
    for _ in range(50):
        line.note(0, 9, 0.8)
        line.note(1, 9, 0.8)
    for _ in range(50):
        line.note(0, 1, 0.8)
        line.note(1, 2, 0.8)
    assert line.slope() == pytest.approx(1, abs=1e-3)
