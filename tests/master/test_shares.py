"""`Shares`: bounds of all keys and of each."""

from __future__ import annotations

import pytest
from orca_master.batches.shares import Shares


@pytest.mark.parametrize(
    ("owner", "held", "count", "fits"),
    [
        ("", {}, 5, True),
        ("", {}, 6, False),
        ("a", {}, 3, True),
        ("a", {}, 4, False),
        ("a", {"a": 2}, 1, True),
        ("a", {"a": 2}, 2, False),
        ("a", {"b": 3}, 2, True),
        ("a", {"b": 3}, 3, False),
    ],
)
def test_a_key_has_half_at_most(owner, held, count, fits):
    shares = Shares(5)
    for name, number in held.items():
        shares.add(name, number)
    assert shares.fits(owner, count) is fits


def test_what_is_given_back_is_free():
    shares = Shares(4)
    shares.add("a", 2)
    shares.add("a", -2)
    assert shares.fits("a", 2)
    assert shares.total == 0
