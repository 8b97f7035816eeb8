"""`MeasuredDraftCosts`: how much longer a row makes an iteration, and how long the draft model takes. Pure, no clock.

The weights of the model are read once per iteration, whatever its number of rows, so a row is nearly free where reading
takes the time, and has its full price where products do. The line of the iterations' times over their rows tells both.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from functools import partial

from orca_protos import engine_pb2 as pb

from orca_master.engine.moving_line import MovingLine
from orca_master.engine.moving_plane import MovingPlane
from orca_master.scheduling.draft_costs import DraftCosts

KEPT = 1 - 1 / 64
"""The weight of an iteration decreases by the factor e in 64 iterations."""
KEPT_DRAFTING = 1 - 1 / 16
"""That of an iteration of the draft model in 16: there are few where drafts do not pay."""
LEAST_VARIANCE = 0.01
"""Of the numbers of rows, in parts of the mean of their squares: with fewer differences, noise would decide."""
LEAST, MOST = 0.01, 1.0
LATEST = 3
"""Iterations of as many rows of which the median counts: the first of its size is recorded (decode_graphs.py), or takes
memory, and lasts up to four times as long."""
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
        self._drafting = MovingPlane()
        """Seconds of the draft model, over those of the model for as many steps and rows, and over other tokens."""
        self._sizes = set[tuple[str, int]]()
        """Numbers of rows that the draft model of a pipeline has drafted for."""

    @property
    def costs(self) -> DraftCosts:
        """The costs of a row and of a step from LEAST to MOST, that of a token to catch up to MOST.

        Those that are not known have their defaults.
        """
        default = DraftCosts()
        row, (step, seconds) = self._row, self._drafting.slopes()
        caught_up = self._in_parts(seconds)
        look_ahead = self._in_parts(LOOK_AHEAD_SECONDS) if self._looks_ahead else 0.0
        return DraftCosts(
            default.row if row is None else row,
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
        constant = max(self._line.constant(slope), slope / MOST)
        if constant > 0:
            self._constant, self._row = constant, _bounded(slope / constant)

    def note_drafting(self, pipeline: str, result: pb.IterationResult) -> None:
        """Add the time of the draft model in an iteration, unless it is the pipeline's first with so many drafts.

        A step has a row for each draft that goes on. The first step also has the tokens that were caught up on; the
        few behind an accepted draft belong to the step.
        """
        lengths = [len(each.token) for each in result.drafted if each.token]
        if self._constant is None or self._row is None:
            return
        if (size := (pipeline, len(lengths))) not in self._sizes:
            self._sizes.add(size)
            return
        iterations = self._constant * (max(lengths, default=0) + self._row * sum(lengths))
        has_others = result.num_caught_up > MOST_INPUTS * len(lengths)
        num_others = result.num_caught_up - len(lengths) if has_others else 0
        self._drafting.note((iterations, num_others), result.drafting_ns / 1e9, KEPT_DRAFTING)

    def note_lost(self, pipeline: str) -> None:
        """Note the loss of a pipeline: its next workers have recorded nothing."""
        self._sizes = {size for size in self._sizes if size[0] != pipeline}

    def _in_parts(self, seconds: float | None) -> float | None:
        """Return a time in parts of an iteration without rows."""
        return None if seconds is None or self._constant is None else seconds / self._constant


def _bounded(cost: float) -> float:
    return min(MOST, max(LEAST, cost))
