"""The result of a run, in simulated time (simulator.py) or on a live engine (on_engine.py)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(slots=True)
class Fate:
    """One request: its arrival, and the arrival times of its tokens at the client. Seconds since the start."""

    arrival: float
    tokens: list[float] = field(default_factory=list)


class Span(NamedTuple):
    """The computation of an iteration on a stage. Seconds since the start; `label` names the requests of the batch."""

    pipeline: str
    partition: int
    sequence: int
    begin: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Run:
    """A complete run of `seconds`, from its start to its last token."""

    requests: list[Fate]
    seconds: float
    num_iterations: int
    spans: list[Span]

    @property
    def busy(self) -> list[list[float]]:
        """Fraction of the time that each stage computed, by pipeline and partition."""
        worked: dict[str, dict[int, float]] = {}
        for span in self.spans:
            stages = worked.setdefault(span.pipeline, {})
            stages[span.partition] = stages.get(span.partition, 0.0) + span.end - span.begin
        return [
            [stages[partition] / self.seconds for partition in sorted(stages)] for _, stages in sorted(worked.items())
        ]


def figures(run: Run) -> dict[str, Any]:
    """Return throughput and latencies of a run, with the keys of `orca bench serve`."""
    generated = [fate for fate in run.requests if fate.tokens]
    latencies = [fate.tokens[-1] - fate.arrival for fate in generated]
    return {
        "request_throughput": _per(len(run.requests), run.seconds),
        "output_throughput": _per(sum(len(fate.tokens) for fate in generated), run.seconds),
        "median_e2el_ms": _median_ms(latencies),
        "median_normalized_latency_ms": _median_ms(
            [latency / len(fate.tokens) for latency, fate in zip(latencies, generated, strict=True)]
        ),
        "median_ttft_ms": _median_ms([fate.tokens[0] - fate.arrival for fate in generated]),
        "num_iterations": run.num_iterations,
        "busy": [round(share, 3) for pipeline in run.busy for share in pipeline],
    }


def _per(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _median_ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e3
