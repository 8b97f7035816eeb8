"""`WaitMargin`: by how much first tokens come later than the expected wait. It has no clock.

An expected value says nothing of the wait of the unlucky ones, and not all of a wait is known: the lengths of running
answers, pauses of the machine, a request's own prompt. The margin is a running quantile of what was missing, by
stochastic approximation (Robbins and Monro, "A Stochastic Approximation Method", 1951). A late token raises the margin
at most to its own lateness. The margin does not change the errors from which it is measured, so it does not swing.
"""

from __future__ import annotations

import math

QUANTILE = 0.99
STEP = 1 / 200
"""Step as a fraction of the bound: an error of the bound's size is reached by 200 late requests."""
MOST = 0.5
"""Largest margin as a fraction of the bound: some requests are always accepted."""


class WaitMargin:
    """The quantile QUANTILE of (time to the first token - expected wait) of the last requests, at least 0."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def seconds(self, bound: float) -> float:
        """Return the margin for a bound of the wait, in seconds."""
        return min(self._seconds, MOST * bound)

    def note(self, late: float, bound: float) -> None:
        """Note by how many seconds a first token came later than expected; negative if it came earlier."""
        if math.isinf(bound):
            return
        step = STEP * bound
        if late >= self._seconds:
            seconds = min(late, self._seconds + QUANTILE * step)
        else:
            seconds = max(0.0, self._seconds - (1 - QUANTILE) * step)
        self._seconds = min(seconds, MOST * bound)
