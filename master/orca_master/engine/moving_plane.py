"""`MovingPlane`: y as a sum of two proportional parts, by least squares with weights that decrease. Pure."""

from __future__ import annotations

LEAST_DIFFERENCE = 1e-3
"""Squared sine of the angle between the columns of x values: with less they are too much alike to tell the parts."""
FORGOTTEN = 1e-9
"""The sum of a column's squares, in parts of its latest square above 0, from which on the column counts as empty."""


class MovingPlane:
    """Sums over the points noted so far, the latest with the weight 1: y = slope[0] x[0] + slope[1] x[1]."""

    def __init__(self) -> None:
        self._squares, self._latest, self._products = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        """Of each column: the sum of squares, the latest square, and the sum of products with y."""
        self._mixed = 0.0
        """Sum of the products of both columns."""
        self._slopes: list[float | None] = [None, None]

    def note(self, x: tuple[float, float], y: float, kept: float) -> None:
        """Add a point, x values not below 0; the weights of all earlier ones are multiplied by `kept`, 0 to 1."""
        self._mixed = kept * self._mixed + x[0] * x[1]
        for column, value in enumerate(x):
            self._squares[column] = kept * self._squares[column] + value * value
            self._products[column] = kept * self._products[column] + value * y
            if value:
                self._latest[column] = value * value
            if self._squares[column] <= FORGOTTEN * self._latest[column]:
                self._squares[column] = self._products[column] = self._mixed = 0.0
        self._solve()

    def slopes(self) -> tuple[float | None, float | None]:
        """Return both slopes, at least 0; the last ones that were known, None before."""
        return self._slopes[0], self._slopes[1]

    def _solve(self) -> None:
        (first, second), products = self._squares, self._products
        if not first or not second:
            for column in (0, 1):
                if self._squares[column]:
                    self._slopes[column] = products[column] / self._squares[column]
            return
        determinant = first * second - self._mixed**2
        if determinant <= LEAST_DIFFERENCE * first * second:
            return
        slopes = [second * products[0] - self._mixed * products[1], first * products[1] - self._mixed * products[0]]
        if slopes[0] < 0:
            self._slopes = [0.0, products[1] / second]
        elif slopes[1] < 0:
            self._slopes = [products[0] / first, 0.0]
        else:
            self._slopes = [slopes[0] / determinant, slopes[1] / determinant]
