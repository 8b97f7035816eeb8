"""Fits a cost model to the iteration log of a live engine.

`orca serve --iteration-log FILE` writes the log (orca_master/metrics/iteration_log.py). The time of a stage is modelled
as linear in requests, tokens, cached tokens and query-key pairs of attention, plus a constant per iteration, with
non-negative coefficients.
The rest of a round trip is measured: the gap between two stages; the mean gap from a result to the next iteration,
where requests continued and the first stage was free, so that nothing else delayed the pipeline; and the gap between
two iterations on a stage where the second iteration was already waiting.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from orca_bench.cost import Work, amounts

FEATURES = ("per_iteration", "per_request", "per_token", "per_cached_token", "per_pair")
REWEIGHTINGS = 3


class CalibrationError(Exception):
    """An invalid or insufficient iteration log; the message names the file."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A `CostModel`. `stages` has the coefficients of FEATURES for each partition, in seconds."""

    stages: tuple[tuple[float, ...], ...]
    hand_over: float = 0.0
    turnaround_seconds: float = 0.0
    between_seconds: float = 0.0

    def stage_seconds(self, stage: int, work: Iterable[Work]) -> float:
        """See CostModel."""
        return sum(
            coefficient * amount for coefficient, amount in zip(self.stages[stage], _features(work), strict=True)
        )

    def hand_over_seconds(self, work: Iterable[Work]) -> float:
        """See CostModel."""
        return self.hand_over


def _features(work: Iterable[Work]) -> tuple[float, ...]:
    return (1.0, *amounts(work))


def calibrate(path: Path) -> Measured:
    """Fit a cost model to an iteration log; raise CalibrationError."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        work = [
            [Work(*entry) for entry in zip(line["num_tokens"], line["context_length"], strict=True)] for line in lines
        ]
        stages = list(zip(*(line["stages"] for line in lines), strict=True))
        if len(lines) < 2 * len(FEATURES):
            raise ValueError(f"{len(lines)} iterations are too few")
        amounts = np.array([_features(entries) for entries in work])
        fitted = tuple(_fit(amounts, np.array([end - begin for begin, end in stage])) for stage in stages)
        return Measured(fitted, _hand_over(lines), *_turnaround_and_between(lines))
    except OSError as error:
        raise CalibrationError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CalibrationError(f"{path}: not an iteration log: {error}") from error


def _fit(amounts: np.ndarray, seconds: np.ndarray) -> tuple[float, ...]:
    """Fit by least squares of the relative errors.

    Relative to the fitted, not to the measured times: otherwise slow outliers would weigh less than fast outliers, and
    the sum of the predictions would be below the sum of the times.
    """
    weights = np.full(len(seconds), 1 / seconds.mean())
    for _ in range(REWEIGHTINGS):
        coefficients = _non_negative(amounts * weights[:, None], seconds * weights)
        weights = 1 / np.maximum(amounts @ coefficients, seconds.min())
    return tuple(coefficients.tolist())


def _non_negative(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Fit by least squares; omit features with negative coefficients."""
    used = list(range(rows.shape[1]))
    while True:
        solution, *_ = np.linalg.lstsq(rows[:, used], values, rcond=None)
        if (solution >= 0).all():
            break
        del used[int(solution.argmin())]
    coefficients = np.zeros(rows.shape[1])
    coefficients[used] = solution
    return coefficients


def _hand_over(lines: Sequence[dict[str, Any]]) -> float:
    """Return the time between stages: the median of the shorter half of the gaps, without waits for a busy stage."""
    gaps = sorted(later[0] - earlier[1] for line in lines for earlier, later in pairwise(line["stages"]))
    return max(0.0, statistics.median(gaps[: len(gaps) // 2 + 1])) if gaps else 0.0


def _turnaround_and_between(lines: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the mean gap from a result to the next start on a free first stage, and the median gap on a busy one.

    Counts only iterations with continued requests that started before the next result: this result triggered them.
    """
    by_pipeline: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_pipeline.setdefault(line["pipeline"], []).append(line)
    free: list[float] = []
    waited: list[float] = []
    for entries in by_pipeline.values():
        depth = len(entries[0]["stages"])
        for first, before, after in zip(entries, entries[depth - 1 :], entries[depth:], strict=False):
            begin, result = after["stages"][0][0], first["stages"][-1][1]
            if not any(after["context_length"]) or after["sequence"] != first["sequence"] + depth or begin < result:
                continue
            if first is before:
                free.append(begin - result)
            elif begin < before["stages"][-1][1]:
                released = before["stages"][0][1]
                (free if released < result else waited).append(begin - max(result, released))
    return statistics.fmean(free or [0.0]), statistics.median(waited or [0.0])
