"""How busy each partition is, from the timings that come back with results and Acks.

A stage's bubble is the time from the end of one iteration to the start of the next while requests of its pipeline were
under way (the paper, section 4.2: with n_workers iterations in flight there should be none). A gap before an iteration
of new requests only is not counted: nobody may have been there. Both moments are the same worker's, so clocks need not
agree.
"""

from __future__ import annotations

from collections import defaultdict, deque

from orca_protos import engine_pb2 as pb
from prometheus_client import CollectorRegistry, Counter

from orca_master.scheduling.batch import Batch

REMEMBERED = 256
"""Iterations whose timings may still come: far more than can be in flight."""


class StageMetrics:
    """Counters of each partition's busy and idle seconds; bubble / (bubble + busy) is its bubble ratio."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        labels = ["model_name", "pipeline", "partition"]
        self._model_name = model_name
        self._busy = Counter(
            "orca:stage_busy_seconds", "Time that a partition spent computing iterations", labels, registry=registry
        )
        self._bubble = Counter(
            "orca:stage_bubble_seconds",
            "Time that a partition stood idle between two iterations while requests were under way",
            labels,
            registry=registry,
        )
        self._beginnings: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._last_end_ns: dict[tuple[str, int], int] = {}

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        """Note iterations of new requests only."""
        if not any(scheduled.context_length for scheduled in batch.requests):
            self._beginnings[batch.pipeline].append(sequence)

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """Add up a stage's time and the gap before it."""
        labels = (self._model_name, pipeline, str(timing.partition))
        self._busy.labels(*labels).inc((timing.ended_ns - timing.started_ns) / 1e9)
        before = self._last_end_ns.get((pipeline, timing.partition))
        self._last_end_ns[pipeline, timing.partition] = timing.ended_ns
        if before is not None and timing.sequence not in self._beginnings[pipeline]:
            self._bubble.labels(*labels).inc(max(0, timing.started_ns - before) / 1e9)
