"""Busy and bubble time of each partition, and whether it replays decode graphs, from timings in results and Acks.

The bubble of a stage is the time between the end of an iteration and the start of the next while its pipeline has
running requests (the paper, section 4.2: n_workers iterations in flight leave no bubble). A gap before an iteration
with only new requests is not counted: the pipeline may have had no requests. Both times are from the same worker's
clock.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Collection

from orca_protos import engine_pb2 as pb
from prometheus_client import CollectorRegistry, Counter, Gauge

from orca_master.scheduling.batch import Batch

REMEMBERED = 256
"""Remembered iterations per pipeline, far more than can be in flight."""


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
            "Time that a partition was idle between iterations while its pipeline had running requests",
            labels,
            registry=registry,
        )
        self._graphs_refused = Gauge(
            "orca:decode_graphs_refused",
            "1 if a partition could not record its decode iterations and runs them more slowly: see the worker's log",
            labels,
            registry=registry,
        )
        self._new_only: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        """Per pipeline: sequence numbers of iterations with only new requests."""
        self._last_end_ns: dict[tuple[str, int], int] = {}

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        """Remember iterations with only new requests."""
        if all(scheduled.admitted for scheduled in batch.requests):
            self._new_only[batch.pipeline].append(sequence)

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """Add the time of a stage and the gap before, and set whether it replays decode graphs."""
        labels = (self._model_name, pipeline, str(timing.partition))
        self._graphs_refused.labels(*labels).set(timing.graphs_refused)
        self._busy.labels(*labels).inc((timing.ended_ns - timing.started_ns) / 1e9)
        last_end_ns = self._last_end_ns.get((pipeline, timing.partition))
        self._last_end_ns[pipeline, timing.partition] = timing.ended_ns
        if last_end_ns is not None and timing.sequence not in self._new_only[pipeline]:
            self._bubble.labels(*labels).inc(max(0, timing.started_ns - last_end_ns) / 1e9)

    def keep(self, pipelines: Collection[str]) -> None:
        """Drop the series of all other pipelines, which have been removed. On any thread."""
        for pipeline, partition in list(self._last_end_ns):
            if pipeline in pipelines:
                continue
            self._last_end_ns.pop((pipeline, partition), None)
            self._new_only.pop(pipeline, None)
            for metric in (self._busy, self._bubble, self._graphs_refused):
                with contextlib.suppress(KeyError):  # by versions of prometheus_client that raise it
                    metric.remove(self._model_name, pipeline, str(partition))
