"""`MovingPlane`: y as a sum of two proportional parts, by least squares with weights that decrease. Pure."""

from __future__ import annotations

LEAST_DIFFERENCE = 1e-3
"""Squared sine of the angle between the columns of x values: with less they are too much alike to tell the parts."""


class MovingPlane:
    """Sums over the points noted so far, the latest with the weight 1: y = slope[0] x[0] + slope[1] x[1]."""

    def __init__(self) -> None:
        self._xx, self._zz, self._xz, self._xy, self._zy = (0.0,) * 5
        self._slopes: tuple[float | None, float | None] = (None, None)

    def note(self, x: tuple[float, float], y: float, kept: float) -> None:
        """Add a point, x values not below 0; the weights of all earlier ones are multiplied by `kept`, 0 to 1."""
        first, second = x
        self._xx = kept * self._xx + first * first
        self._zz = kept * self._zz + second * second
        self._xz = kept * self._xz + first * second
        self._xy = kept * self._xy + first * y
        self._zy = kept * self._zy + second * y
        determinant = self._xx * self._zz - self._xz**2
        if determinant > LEAST_DIFFERENCE * self._xx * self._zz:
            slopes = (
                (self._zz * self._xy - self._xz * self._zy) / determinant,
                (self._xx * self._zy - self._xz * self._xy) / determinant,
            )
            self._slopes = max(0.0, slopes[0]), max(0.0, slopes[1])
        elif not self._zz and self._xx:
            self._slopes = self._xy / self._xx, self._slopes[1]
        elif not self._xx and self._zz:
            self._slopes = self._slopes[0], self._zy / self._zz

    def slopes(self) -> tuple[float | None, float | None]:
        """Return both slopes, at least 0; the last ones that were known, None before."""
        return self._slopes
