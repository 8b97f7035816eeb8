"""Ratios of rounds."""

from __future__ import annotations

from orca_bench.rounds import ratio


def test_the_ratio_is_of_pairs_with_its_bounds():
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == "2.00 x [1.00, 3.00]"
