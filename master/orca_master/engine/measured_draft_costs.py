"""`MeasuredDraftCosts`: how much longer a row and a step of the draft model make an iteration. Pure; it has no clock.

The weights of the model are read once per iteration, whatever its number of rows, so a row is nearly free where reading
takes the time, and has its full price where products do. The line of the iterations' times over their rows tells both.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from functools import partial

from orca_protos import engine_pb2 as pb

from orca_master.engine.moving_line import MovingLine
from orca_master.scheduling.draft_costs import DraftCosts

KEPT = 1 - 1 / 64
"""The weight of an iteration decreases by the factor e in 64 iterations."""
LEAST_VARIANCE = 0.01
"""Of the numbers of rows, in parts of the mean of their squares: with fewer differences, noise would decide."""
LEAST, MOST = 0.01, 1.0
LATEST = 3
"""Iterations of as many rows of which the median counts: the first of its size is recorded (decode_graphs.py), or takes
memory, and lasts up to four times as long."""
STEP_WEIGHT = 1 / 32
"""Weight of the latest iteration in the times of the draft model."""
MOST_INPUTS = 4
"""Tokens per draft of a first step that takes as long as the other steps."""
LOOK_AHEAD_SECONDS = 0.0014
"""What look-ahead saves of an iteration: the worker's wait for the master, 2.0 instead of 0.6 ms (docs/benchmarks)."""
LOOK_AHEAD = 0.13
"""In parts of an iteration without rows, before the time of an iteration is known: that of one that takes 11 ms."""


class MeasuredDraftCosts:
    """Measures iterations, which can be sent ahead if the engine `looks_ahead`; see DraftCosts."""

    def __init__(self, looks_ahead: bool = False) -> None:
        self._looks_ahead = looks_ahead
        self._line = MovingLine()
        self._latest: defaultdict[int, deque[float]] = defaultdict(partial(deque, maxlen=LATEST))
        """Seconds of the latest iterations by their rows."""
        self._row: float | None = None
        """In parts of an iteration without rows; None as long as it is not known, as the others."""
        self._constant: float | None = None
        """Seconds of an iteration without rows, or of a row where that takes longer."""
        self._drafting_seconds = self._drafting_steps = self._drafting_rows = 0.0
        """Sums over the steps of the draft model, with weights that decrease."""
        self._caught_up: float | None = None
        """Seconds of a token that the draft model computes without drafting behind it."""

    @property
    def costs(self) -> DraftCosts:
        """The costs of a row and of a step from LEAST to MOST, that of a token to catch up to MOST.

        Those that are not known have their defaults.
        """
        default = DraftCosts()
        row, step, caught_up = self._row, self._step, self._in_parts(self._caught_up)
        look_ahead = self._in_parts(LOOK_AHEAD_SECONDS) if self._looks_ahead else 0.0
        return DraftCosts(
            default.row if row is None else _bounded(row),
            default.step if step is None else _bounded(step),
            default.caught_up if caught_up is None else min(MOST, caught_up),
            LOOK_AHEAD if look_ahead is None else look_ahead,
        )

    def note_rows(self, seconds: float, rows: int) -> None:
        """Add an iteration of `rows` generated or drafted tokens that took its pipeline `seconds`, without prompts."""
        latest = self._latest[rows]
        latest.append(seconds)
        if len(latest) < LATEST:
            return
        self._line.note(rows, statistics.median(latest), KEPT)
        slope = self._line.slope(LEAST_VARIANCE)
        if slope is None:
            return
        self._constant = max(self._line.constant(slope), slope / MOST)
        self._row = slope / self._constant

    def note_drafting(self, result: pb.IterationResult) -> None:
        """Add the time of the draft model in an iteration.

        Where its first step computed many tokens, what the other steps do not explain is the time of these tokens.
        """
        lengths = [len(each.token) for each in result.drafted]
        seconds, num_steps = result.drafting_ns / 1e9, max(lengths, default=0)
        if result.num_caught_up <= MOST_INPUTS * len(lengths) and num_steps:
            kept, num_rows = 1 - STEP_WEIGHT, result.num_caught_up + sum(lengths) - len(lengths)
            self._drafting_seconds = kept * self._drafting_seconds + seconds
            self._drafting_steps = kept * self._drafting_steps + num_steps
            self._drafting_rows = kept * self._drafting_rows + num_rows
        else:  # what steps take must be known
            explained = (self._step or 0.0) * self._seconds(num_steps, sum(lengths))
            if explained or not num_steps:
                self._caught_up = _moved(self._caught_up, max(0.0, seconds - explained) / result.num_caught_up)

    @property
    def _step(self) -> float | None:
        """Return the time of a step in parts of an iteration of as many rows."""
        seconds = self._seconds(self._drafting_steps, self._drafting_rows)
        return self._drafting_seconds / seconds if seconds else None

    def _seconds(self, iterations: float, rows: float) -> float:
        """Return the seconds of so many iterations with `rows` rows in all, 0 if they are not known."""
        if self._constant is None or self._row is None:
            return 0.0
        return self._constant * (iterations + self._row * rows)

    def _in_parts(self, seconds: float | None) -> float | None:
        """Return a time in parts of an iteration without rows."""
        return None if seconds is None or self._constant is None else seconds / self._constant


def _bounded(cost: float) -> float:
    return min(MOST, max(LEAST, cost))


def _moved(mean: float | None, value: float) -> float:
    return value if mean is None else mean + STEP_WEIGHT * (value - mean)
