"""`AnswerLengths`: how many tokens an answer is expected to have, from the lengths of the last answers. Pure.

An answer that stopped has shown its length, and so has a cancelled one: a stop string cancels its request, and each of
them frees a place. An answer that reached its own maximum, or still runs, has shown only that it is at least so long:
it is censored. The survival function S(t), the fraction of answers longer than t tokens, is the product-limit estimate
for censored observations (Kaplan and Meier, Nonparametric Estimation from Incomplete Observations, 1958).

An answer that ran already when the observed time began is at risk only beyond its length at that time (delayed entry).
Otherwise many running answers, whose past is counted while those that ended in this past are not, would seem to show
that answers are long: with 256 of them and lengths of an exponential distribution, waits would be estimated twice as
long as they are.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable
from typing import NamedTuple

from orca_master.scheduling.request import Request

PERIOD = 64
"""Answers per period of observation; the present and the previous period count."""
ITERATIONS_PER_CURVE = 8
"""Running answers grow with each iteration; the curve is renewed with each end, and after so many iterations."""

LATE_PER_OBSERVED = 8
"""A stop weighs at most as if one of so many answers that are as long or longer had been observed at its length: among
many long answers the first short one does not mean that all new ones are short."""


class Observation(NamedTuple):
    """An answer that was observed from `entered` to `length` tokens, and then stopped or was censored."""

    entered: int
    length: int
    stopped: bool


class Curve:
    """The survival function of `observations`, at least one. All lengths in tokens.

    Beyond the largest observation t, S keeps its value up to 2 t and is 0 after that: few observations mean neither
    that all answers reach their maximum, nor that none is longer than the longest so far.
    """

    def __init__(self, observations: Collection[Observation]) -> None:
        self._starts, self._values = [0.0], [1.0]
        """S has `_values[i]` from `_starts[i]` on."""
        self._areas, self._moments = [0.0], [0.0]
        """The integrals of S(t) and of t S(t) from 0 to `_starts[i]`."""
        entered = sorted(entry.entered for entry in observations)
        left = sorted(entry.length for entry in observations)
        stops = sorted(entry.length for entry in observations if entry.stopped)
        index = 0
        while index < len(stops):
            length = stops[index]
            end = bisect.bisect_right(stops, length, index)
            ended = bisect.bisect_left(left, length)
            at_risk = max(bisect.bisect_left(entered, length) - ended, (len(left) - ended) // LATE_PER_OBSERVED)
            self._step(length, self._values[-1] * (1 - (end - index) / at_risk))
            index = end
        self._step(2 * left[-1], 0.0)

    def expected(self, most: float) -> float:
        """Return the expected length of an answer of at most `most` tokens."""
        return self._integrals(most)[0]

    def expected_rest(self, length: int, most: int) -> float:
        """Return how many further tokens an answer is expected to have that has `length` of at most `most`."""
        area, _, value = self._integrals(length)
        if value <= 0.0:
            return float(min(length, most - length))  # longer than expected of any
        return (self._integrals(most)[0] - area) / value

    def expected_rest_at_any_time(self, most: int) -> float:
        """Return the mean of `expected_rest` over the time that an answer of at most `most` tokens runs.

        E[X^2] / (2 E[X]) of its length X, a half if all are of the same length (Cox, Renewal Theory, 1962).
        """
        area, moment, _ = self._integrals(most)
        return moment / area if area else 0.0

    def _step(self, start: float, value: float) -> None:
        """Continue S up to `start`, where it becomes `value`."""
        before, last = self._starts[-1], self._values[-1]
        self._areas.append(self._areas[-1] + last * (start - before))
        self._moments.append(self._moments[-1] + last * (start * start - before * before) / 2)
        self._starts.append(start)
        self._values.append(value)

    def _integrals(self, end: float) -> tuple[float, float, float]:
        """Return the integrals of S(t) and of t S(t) from 0 to `end`, and S(end)."""
        index = bisect.bisect_right(self._starts, end) - 1
        start, value = self._starts[index], self._values[index]
        area = self._areas[index] + value * (end - start)
        return area, self._moments[index] + value * (end * end - start * start) / 2, value


class AnswerLengths:
    """Observes the answers of one scheduler. A request without a token is no observation."""

    def __init__(self) -> None:
        self._ended: tuple[list[Observation], list[Observation]] = ([], [])
        """The answers that ended in the previous and in the present period."""
        self._entered: tuple[dict[str, int], dict[str, int]] = ({}, {})
        """Lengths, at the begin of these periods, of the answers that ran then, by request."""
        self._iterations = 0
        self._curve: Curve | None = None

    def note_end(self, request: Request, running: Iterable[Request]) -> None:
        """Note the end of a request, also of a cancelled one; `running`: the requests that hold slots."""
        if request.generated:
            self._ended[1].append(self._observed(request, len(request.generated) < request.max_gen_tokens))
            self._curve = None
        if len(self._ended[1]) == PERIOD:
            self._ended = (self._ended[1], [])
            self._entered = (self._entered[1], {entry.request_id: len(entry.generated) for entry in running})

    def note_iteration(self) -> None:
        """Note an iteration, with which running answers have grown."""
        self._iterations = (self._iterations + 1) % ITERATIONS_PER_CURVE
        if not self._iterations:
            self._curve = None

    def curve(self, running: Iterable[Request]) -> Curve | None:
        """Return the present estimate, None without an observation; `running`: the requests that hold slots."""
        if self._curve is None:
            observations = [self._observed(entry, stopped=False) for entry in running if entry.generated]
            observations += itertools.chain(*self._ended)
            self._curve = Curve(observations) if observations else None
        return self._curve

    def _observed(self, request: Request, stopped: bool) -> Observation:
        entered, length = self._entered[0].get(request.request_id, 0), len(request.generated)
        return Observation(entered, length, stopped and entered < length)
