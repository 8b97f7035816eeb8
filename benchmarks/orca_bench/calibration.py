"""A cost model from a live engine: the time of each stage as a sum over what an iteration computes, fitted to its log.

`orca serve --iteration-log FILE` writes the log (orca_master/metrics/iteration_log.py). A stage's time is taken as
linear in iterations, requests, tokens, cached tokens and attention's pairs of query and key; coefficients are never
negative.
The rest of a round trip is measured too: the gap between two stages; the mean gap from a result to the next
iteration wherever requests went on and the first stage was free, so that the pipeline waited for nothing else; and
the gap between two iterations on a stage where the second had been waiting for it.
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
    """A log that nothing can be learned from; the message names the file."""


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
    """Fits an iteration log; raises CalibrationError."""
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
    """Least squares of the relative errors.

    Relative to the fit, not to what was measured: else slow outliers would weigh less than fast ones, and the sum of
    the predictions would come out below the sum of the times.
    """
    weights = np.full(len(seconds), 1 / seconds.mean())
    for _ in range(REWEIGHTINGS):
        coefficients = _non_negative(amounts * weights[:, None], seconds * weights)
        weights = 1 / np.maximum(amounts @ coefficients, seconds.min())
    return tuple(coefficients.tolist())


def _non_negative(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least squares; a feature whose coefficient comes out negative is left out."""
    used = list(range(rows.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(rows[:, used], values, rcond=None)
        if (found >= 0).all():
            break
        del used[int(found.argmin())]
    coefficients = np.zeros(rows.shape[1])
    coefficients[used] = found
    return coefficients


def _hand_over(lines: Sequence[dict[str, Any]]) -> float:
    """Return the time between stages: the shortest half of the gaps; behind the others stood a busy stage."""
    gaps = sorted(later[0] - earlier[1] for line in lines for earlier, later in pairwise(line["stages"]))
    return max(0.0, statistics.median(gaps[: len(gaps) // 2 + 1])) if gaps else 0.0


def _turnaround_and_between(lines: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """From a result to the first stage's next begin if it was free; from its end to that begin if it was not.

    Only where requests go on, and where that iteration was begun before the next result: it was sent upon this one.
    """
    by_pipeline: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_pipeline.setdefault(line["pipeline"], []).append(line)
    free: list[float] = []
    waited: list[float] = []
    for own in by_pipeline.values():
        depth = len(own[0]["stages"])
        for first, before, after in zip(own, own[depth - 1 :], own[depth:], strict=False):
            begin, result = after["stages"][0][0], first["stages"][-1][1]
            if not any(after["context_length"]) or after["sequence"] != first["sequence"] + depth or begin < result:
                continue
            if first is before:
                free.append(begin - result)
            elif begin < before["stages"][-1][1]:
                released = before["stages"][0][1]
                (free if released < result else waited).append(begin - max(result, released))
    return statistics.fmean(free or [0.0]), statistics.median(waited or [0.0])
