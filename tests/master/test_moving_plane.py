"""`MovingPlane`: two proportional parts of a sum."""

from __future__ import annotations

import random

import pytest
from orca_master.engine.moving_plane import MovingPlane


def test_both_parts_follow_from_points_in_which_they_differ():
    plane, drawn = MovingPlane(), random.Random(1)
    for _ in range(50):
        x = drawn.uniform(0, 2), drawn.uniform(0, 100)
        plane.note(x, 3 * x[0] + 0.5 * x[1], 0.9)
    assert plane.slopes() == pytest.approx((3, 0.5))


def test_the_latest_points_count_most():
    plane, drawn = MovingPlane(), random.Random(1)
    for slope in (9.0,) * 50 + (2.0,) * 200:
        x = drawn.uniform(1, 2), drawn.uniform(0, 2)
        plane.note(x, slope * x[0] + x[1], 0.9)
    assert plane.slopes() == pytest.approx((2, 1), rel=1e-3)


def test_a_part_that_never_occurs_is_unknown():
    plane = MovingPlane()
    assert plane.slopes() == (None, None)
    plane.note((2.0, 0.0), 4.0, 0.9)
    assert plane.slopes() == (2.0, None)
    other = MovingPlane()
    other.note((0.0, 4.0), 2.0, 0.9)
    assert other.slopes() == (None, 0.5)


def test_parts_that_grow_together_keep_what_was_known():
    plane = MovingPlane()
    for number in range(1, 9):
        plane.note((2.0 * number, float(number)), 5.0 * number, 0.9)
    assert plane.slopes() == (None, None)


def test_no_part_is_below_zero():
    plane = MovingPlane()
    for x, y in (((1.0, 0.0), 5.0), ((1.0, 1.0), 1.0)):
        plane.note(x, y, 1.0)
    first, second = plane.slopes()
    assert first is not None
    assert first > 0
    assert second == 0.0
