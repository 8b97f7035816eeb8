"""Prometheus metrics of the operator: passes, write requests to the API server, and OrcaDeployments by reason."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from orca_operator.store import Key

DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histogram's buckets, in seconds."""


class Metrics:
    """One registry. `count_write` may be called on any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._passes = Counter(
            "orca_operator_reconciles",
            "Passes over an OrcaDeployment; result is succeeded or failed (it is repeated)",
            ["result"],
            registry=self.registry,
        )
        self._durations = Histogram(
            "orca_operator_reconcile_duration_seconds",
            "Duration of a pass, without the wait for its turn",
            buckets=DURATIONS,
            registry=self.registry,
        )
        self._queue = Gauge(
            "orca_operator_queue_depth", "OrcaDeployments whose pass is due or running", registry=self.registry
        )
        self._writes = Counter(
            "orca_operator_api_writes",
            "Write requests to the API server, accepted or not, without dry runs; a status is written by patch",
            ["verb", "kind"],
            registry=self.registry,
        )
        self._deployments = Gauge(
            "orca_operator_orcadeployments",
            "OrcaDeployments by the reason of their condition Ready",
            ["reason"],
            registry=self.registry,
        )
        self._reasons: dict[Key, str] = {}
        for result in ("succeeded", "failed"):
            self._passes.labels(result)

    def watch_queue(self, depth: Callable[[], int]) -> None:
        """Have every scrape call `depth`."""
        self._queue.set_function(depth)

    @contextlib.contextmanager
    def timed_pass(self) -> Iterator[None]:
        """Record the pass that the body of the `with` makes. A pass that raises has failed."""
        begin = time.monotonic()
        try:
            yield
        except Exception:
            self.count_pass(False, time.monotonic() - begin)
            raise
        self.count_pass(True, time.monotonic() - begin)

    def count_pass(self, succeeded: bool, seconds: float) -> None:
        """Record a pass that has ended."""
        self._passes.labels("succeeded" if succeeded else "failed").inc()
        self._durations.observe(seconds)

    def count_write(self, verb: str, kind: str) -> None:
        """Record a write request: create, patch or delete."""
        self._writes.labels(verb, kind).inc()

    def set_reason(self, key: Key, reason: str) -> None:
        """Record the reason of an OrcaDeployment's condition Ready."""
        if self._reasons.get(key) != reason:
            self.forget(key)
            self._reasons[key] = reason
            self._deployments.labels(reason).inc()

    def forget(self, key: Key) -> None:
        """Drop a deleted OrcaDeployment."""
        if (reason := self._reasons.pop(key, None)) is not None:
            self._deployments.labels(reason).dec()

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
