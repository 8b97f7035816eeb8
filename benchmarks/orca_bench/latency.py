"""Latencies of any number of requests in constant memory: a histogram, and the figures of an interval of time."""

from __future__ import annotations

import itertools
import math
from collections import Counter

from orca_bench.random_load import Asked

GROWTH = math.log(1.02)
"""Each bucket is 2 % wider than the one before."""


class Histogram:
    """Positive values in buckets of 2 %: the error of a quantile is at most 1 %. `longest`: the largest value."""

    def __init__(self) -> None:
        self.longest = math.nan
        self._counts: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """Count one value; one below a microsecond counts as a microsecond."""
        self._counts[round(math.log(max(value, 1e-6)) / GROWTH)] += 1
        if not value <= self.longest:  # also the first: nan
            self.longest = value

    def quantile(self, fraction: float) -> float:
        """Return the middle of the bucket in which the quantile lies, nan without values."""
        rank, seen = fraction * self._counts.total(), 0
        for bucket, count in sorted(self._counts.items()):
            seen += count
            if seen >= rank:
                return math.exp(bucket * GROWTH)
        return math.nan


class Interval:
    """The requests that ended in an interval, with all their latencies."""

    def __init__(self) -> None:
        self.completed = self.cancelled = self.refused = self.failed = 0
        self._first_tokens = Histogram()
        self._pauses = Histogram()

    def add(self, asked: Asked) -> None:
        """Count a request that has ended."""
        self.completed += not (asked.error or asked.retry_after or asked.cancelled)
        self.cancelled += asked.cancelled
        self.refused += asked.retry_after > 0
        self.failed += bool(asked.error)
        if asked.tokens:
            self._first_tokens.add(asked.wait)
        for earlier, later in itertools.pairwise(asked.tokens):
            self._pauses.add(later - earlier)

    def __str__(self) -> str:
        """Return the figures that are not 0 in one line."""
        return ", ".join(f"{name} {value:.4g}" for name, value in self.figures().items() if value > 0)

    def figures(self) -> dict[str, float]:
        """Return the figures by name; a latency without a value is nan."""
        return {
            "completed requests": self.completed,
            "cancelled requests": self.cancelled,
            "refused requests": self.refused,
            "failed requests": self.failed,
            "TTFT p50 (ms)": 1000 * self._first_tokens.quantile(0.5),
            "TTFT p99 (ms)": 1000 * self._first_tokens.quantile(0.99),
            "time between tokens p50 (ms)": 1000 * self._pauses.quantile(0.5),
            "time between tokens p99 (ms)": 1000 * self._pauses.quantile(0.99),
            "time between tokens, longest (ms)": 1000 * self._pauses.longest,
        }
