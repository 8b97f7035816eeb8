"""Ratios of alternating rounds, as benchmarks print them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95
FEWEST_ROUNDS = 9
"""From which on the confidence interval of the median is narrower than that of the smallest and the largest ratio."""


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> str:
    """Return the median of the rounds' ratios, with the smallest and the largest: `1.23 x [1.10, 1.30]`.

    From FEWEST_ROUNDS on with a digit more, and the confidence interval of the median:
    `1.234 x [1.101, 1.304] (95 %: 1.212 to 1.262)`.
    """
    ratios = sorted(over / under for over, under in zip(numerators, denominators, strict=True))
    median, least, most = statistics.median(ratios), ratios[0], ratios[-1]
    if len(ratios) < FEWEST_ROUNDS:
        return f"{median:.2f} x [{least:.2f}, {most:.2f}]"
    below, above = ratios[outside := _num_outside(len(ratios))], ratios[-1 - outside]
    return f"{median:.3f} x [{least:.3f}, {most:.3f}] ({100 * CONFIDENCE:.0f} %: {below:.3f} to {above:.3f})"


def _num_outside(count: int) -> int:
    """Return how many of `count` sorted values lie below, and above, the interval of their median.

    The number of values below the true median is binomial with probability 1/2, whatever their distribution
    (Conover, Practical Nonparametric Statistics, section 3.2).
    """
    number, below = 0, 1  # `below`: of 2 ** count equally likely cases, those with at most `number` values below
    while 2 * below <= (1 - CONFIDENCE) * 2**count:
        number += 1
        below += math.comb(count, number)
    return number - 1
