"""Named series of values over time: their drift, and their form as CSV. Times are seconds after the start."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

Points = Sequence[tuple[float, float]]
"""(time, value) in the order of time."""
MAX_POINTS = 400
"""Points of which a slope is computed: more are thinned out, because the number of pairs is quadratic."""
HOUR = 3600.0


class TimeSeries:
    """Series by name, in the order in which they first had a value."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[float, float]]] = {}

    def add(self, seconds: float, values: Mapping[str, float]) -> None:
        """Add the values of one time. A value that is not a number is left out."""
        for name, value in values.items():
            if not math.isnan(value):
                self.points.setdefault(name, []).append((seconds, value))

    def write_csv(self, path: Path) -> None:
        """Write a row per time and a column per series; a series without a value at a time has an empty field."""
        rows: dict[float, dict[str, float]] = {}
        for name, points in self.points.items():
            for seconds, value in points:
                rows.setdefault(seconds, {})[name] = value
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["seconds", *self.points])
            for seconds, values in sorted(rows.items()):
                cells = (f"{values[name]:.6g}" if name in values else "" for name in self.points)
                writer.writerow([f"{seconds:.1f}", *cells])

    def drifts(self) -> list[str]:
        """Return a Markdown table with a row per series: medians of the first and the last quarter, and slopes."""
        lines = [
            "| series | first quarter | last quarter | per hour | per hour, second half |",
            "|---|---|---|---|---|",
        ]
        for name, points in self.points.items():
            first, last = quarters(points)
            slopes = " | ".join(
                "" if math.isnan(drift) else f"{drift:+.3g}"
                for drift in (slope(points), slope(points[len(points) // 2 :]))
            )
            lines.append(f"| {name} | {first:.4g} | {last:.4g} | {slopes} |")
        return lines


def slope(points: Points) -> float:
    """Return the drift in units per hour: the median of the slopes of all pairs of points (Theil and Sen).

    Up to 29 % of the points may be arbitrary without an arbitrary result. nan with fewer than two points.
    """
    thinned = points[:: math.ceil(len(points) / MAX_POINTS)] if points else points
    slopes = [(later - earlier) / (end - begin) for (begin, earlier), (end, later) in combinations(thinned, 2)]
    return HOUR * statistics.median(slopes) if slopes else math.nan


def quarters(points: Points) -> tuple[float, float]:
    """Return the medians of the values in the first and in the last quarter of the time; raise ValueError if empty."""
    if not points:
        raise ValueError("a series without points")
    begin, end = points[0][0], points[-1][0]
    quarter = (end - begin) / 4
    first = [value for seconds, value in points if seconds <= begin + quarter]
    last = [value for seconds, value in points if seconds >= end - quarter]
    return statistics.median(first), statistics.median(last)


def medians(points: Points, seconds: float) -> list[tuple[float, float]]:
    """Return one point per interval of `seconds`: its middle and the median of its values."""
    intervals: dict[int, list[float]] = {}
    for time, value in points:
        intervals.setdefault(int(time // seconds), []).append(value)
    return [((index + 0.5) * seconds, statistics.median(values)) for index, values in sorted(intervals.items())]


def last_before(points: Points, times: Iterable[float]) -> list[float]:
    """Return the last value before each time that has one."""
    values = ([value for seconds, value in points if seconds < time] for time in times)
    return [before[-1] for before in values if before]
