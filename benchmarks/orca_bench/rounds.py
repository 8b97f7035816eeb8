"""Ratios of alternating rounds, as benchmarks print them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> str:
    """Return the median of the rounds' ratios, with the smallest and the largest: `1.23 x [1.10, 1.30]`."""
    ratios = sorted(over / under for over, under in zip(numerators, denominators, strict=True))
    return f"{statistics.median(ratios):.2f} x [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
