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


def test_where_a_part_would_be_below_zero_the_other_explains_all():
    plane, other = MovingPlane(), MovingPlane()
    for x, y in (((1.0, 0.0), 5.0), ((1.0, 1.0), 1.0)):
        plane.note(x, y, 1.0)
        other.note((x[1], x[0]), y, 1.0)
    assert plane.slopes() == (3.0, 0.0)
    assert other.slopes() == (0.0, 3.0)


def test_a_part_that_does_not_occur_for_long_is_kept_and_does_not_disturb_the_other():
    plane = MovingPlane()
    for x in ((1e-3, 200.0), (2e-3, 100.0)):
        plane.note(x, 3 * x[0] + 0.5 * x[1], 0.9)
    for _ in range(20_000):
        plane.note((1e-3, 0.0), 7e-3, 0.9)
    assert plane.slopes() == pytest.approx((7, 0.5), rel=1e-3)
    for _ in range(200):
        plane.note((1e-3, 10.0), 2e-3 + 4.0, 0.9)
        plane.note((1e-3, 20.0), 2e-3 + 8.0, 0.9)
    assert plane.slopes() == pytest.approx((2, 0.4), rel=1e-3)
