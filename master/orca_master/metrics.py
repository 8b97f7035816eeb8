"""Prometheus metrics of one master; names follow vLLM's under the prefix `orca:`.

Counters are fed by the endpoint (tokens, latencies) and by the engine (iterations, stage timings);
gauges read the engine when they are scraped.
"""

from __future__ import annotations

from orca_protos import engine_pb2 as pb
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from orca_master.engine import EngineMaster
from orca_master.scheduler import Batch

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKEN_BUCKETS = (1, 8, 32, 128, 512, 2048, 8192)


class Metrics:
    """One registry; an `EngineObserver`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.prompt_tokens = Counter("orca:prompt_tokens", "Prompt tokens of accepted requests", registry=self.registry)
        self.generation_tokens = Counter("orca:generation_tokens", "Generated tokens", registry=self.registry)
        self.finished = Counter(
            "orca:request_success", "Requests that ended, by reason", ["finished_reason"], registry=self.registry
        )
        self.time_to_first_token = self._histogram(
            "orca:time_to_first_token_seconds", "From arrival to the first token", LATENCY_BUCKETS
        )
        self.request_latency = self._histogram(
            "orca:e2e_request_latency_seconds", "From arrival to the last token", LATENCY_BUCKETS
        )
        self._batch_size = self._histogram("orca:iteration_batch_size", "Requests per iteration", BATCH_BUCKETS)
        self._batch_tokens = self._histogram("orca:iteration_tokens_total", "Tokens per iteration", TOKEN_BUCKETS)
        self._stage_busy = Counter(
            "orca:stage_busy_seconds",
            "Time that a partition spent computing iterations",
            ["pipeline", "partition"],
            registry=self.registry,
        )

    def watch(self, engine: EngineMaster) -> None:
        """Adds the gauges of `engine`."""
        for name, text, read in (
            ("orca:num_requests_running", "Requests that hold K/V slots", lambda: engine.scheduler.num_running),
            ("orca:num_requests_waiting", "Requests in the queue", lambda: len(engine.pool)),
            ("orca:kv_cache_usage_perc", "Reserved share of the K/V slots, 0 to 1", lambda: engine.cache_usage),
        ):
            Gauge(name, text, registry=self.registry).set_function(read)

    def render(self) -> bytes:
        """Returns the text exposition format."""
        return generate_latest(self.registry)

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        """Counts an iteration."""
        self._batch_size.observe(len(batch.requests))
        self._batch_tokens.observe(sum(scheduled.num_tokens for scheduled in batch.requests))

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """Adds up what a stage was busy."""
        seconds = (timing.ended_ns - timing.started_ns) / 1e9
        self._stage_busy.labels(pipeline, str(timing.partition)).inc(seconds)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)
