"""`MovingLine`: the line through the latest points, by least squares with weights that decrease. Pure."""

from __future__ import annotations

LEAST_VARIANCE = 1e-6
"""Of the x values, in parts of the mean of their squares: of values that are more alike no slope is known."""


class MovingLine:
    """Sums over the points noted so far, the latest with the weight 1."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def note(self, x: float, y: float, kept: float) -> None:
        """Add a point; the weights of all earlier ones are multiplied by `kept`, 0 to 1."""
        self._weight = kept * self._weight + 1
        self._x = kept * self._x + x
        self._y = kept * self._y + y
        self._xx = kept * self._xx + x * x
        self._xy = kept * self._xy + x * y

    def slope(self, least_variance: float = LEAST_VARIANCE) -> float | None:
        """Return the slope, None if the x values are too much alike to tell."""
        variance = self._weight * self._xx - self._x**2
        if variance <= least_variance * self._weight * self._xx:
            return None
        return (self._weight * self._xy - self._y * self._x) / variance

    def constant(self, slope: float) -> float:
        """Return y at x = 0 of the line with this `slope` through the mean of the points."""
        return (self._y - slope * self._x) / self._weight
