"""`RowCost`: how much longer a row makes an iteration, measured. Pure; it has no clock.

The weights of the model are read once per iteration, whatever its number of rows, so a row is nearly free where reading
takes the time, and has its full price where products do. The line of the iterations' times over their rows tells both.
"""

from __future__ import annotations

from orca_master.engine.moving_line import MovingLine
from orca_master.scheduling.speculation import ROW_COST

KEPT = 1 - 1 / 64
"""The weight of an iteration decreases by the factor e in 64 iterations."""
LEAST_VARIANCE = 0.01
"""Of the numbers of rows, in parts of the mean of their squares: with fewer differences, noise would decide."""
LEAST, MOST = 0.01, 1.0


class RowCost:
    """`ratio`: the time of a row in parts of that of an iteration without rows (speculation.py), LEAST to MOST."""

    def __init__(self) -> None:
        self.ratio = ROW_COST
        self._line = MovingLine()

    def note(self, seconds: float, rows: int) -> None:
        """Add an iteration of `rows` generated or drafted tokens that took its pipeline `seconds`, without prompts."""
        self._line.note(rows, seconds, KEPT)
        slope = self._line.slope(LEAST_VARIANCE)
        if slope is None:
            return
        constant = self._line.constant(slope)
        self.ratio = min(MOST, max(LEAST, slope / constant)) if constant > 0 else MOST
