"""`Shares`: bounds of all keys and of each."""

from __future__ import annotations

import contextlib

import pytest
from orca_master.batches.shares import Shares
from orca_master.errors import RequestError


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
    shares = Shares(5, "no room")
    for name, number in held.items():
        shares.add(name, number)
    before = shares.total
    with contextlib.nullcontext() if fits else pytest.raises(RequestError, match="no room"):
        shares.take(owner, count)
    assert shares.total == before + count * fits


def test_what_is_given_back_is_free():
    shares = Shares(4, "no room")
    shares.take("a", 2)
    shares.add("a", -2)
    assert shares.total == 0
    shares.take("a", 2)
