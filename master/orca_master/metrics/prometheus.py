"""Prometheus metrics of one master: vLLM's names and meanings under the prefix `orca:`.

EngineThread updates the metrics of requests, the engine those of iterations, phases and stages; gauges read the
engine when they are scraped. With `vllm_names`, a scrape also has the metrics that vLLM has, under vLLM's own names
(vllm_names.py).
"""

from __future__ import annotations

from collections.abc import Callable

from orca_contract.state import JournalState
from orca_protos import engine_pb2 as pb
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from orca_master.engine.engine_master import EngineMaster
from orca_master.journal.status import JournalStatus
from orca_master.metrics.cache_config import CacheConfig
from orca_master.metrics.stage_metrics import StageMetrics
from orca_master.metrics.vllm_names import under_vllm_names
from orca_master.scheduling.batch import Batch

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
LONG_LATENCIES = (*LATENCIES, 300.0, 600.0, 1200.0, 2400.0, 7200.0)
"""Of times that include a wait in the queue, a whole prompt or a whole answer, which can last for hours."""
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FINISH_REASONS = ("stop", "length", "abort", "error", "fault", "constraint")
"""Finish reasons whose counters exist from the start, so that `rate` also counts the first request."""
SUCCESSES = ("stop", "length")
"""Those of complete answers, whose times and lengths are recorded."""
GRAMMAR_RESULTS = ("compiled", "cached", "refused")
MAX_ROUTES = 64
"""More than the endpoint has. Further routes, which only a damaged API process names, are counted as OTHER_ROUTES."""
OTHER_ROUTES = "other"


class Metrics:
    """One registry; an `EngineObserver`. Every metric has the label `model_name`."""

    def __init__(self, model_name: str, vllm_names: bool = True) -> None:
        self.registry = CollectorRegistry()
        self._model_name = model_name
        self._vllm_names = vllm_names
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests with a first token")
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens")
        self._preemptions = self._counter("num_preemptions", "Preempted requests")
        self._queries = self._counter(
            "prefix_cache_queries", "Tokens of admitted requests, looked up in the prefix cache"
        )
        self._hits = self._counter("prefix_cache_hits", "Tokens of them that the prefix cache had")
        self._evictions = self._counter("prefix_cache_evictions", "K/V blocks that were evicted from the prefix cache")
        self._drafts = self._counter("spec_decode_num_drafts", "Drafts of tokens that iterations computed")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Tokens of these drafts")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Tokens of them that are part of an answer")
        self._finished = Counter(
            "orca:request_success",
            "Finished requests, by finish reason",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        for reason in FINISH_REASONS:
            self._finished.labels(model_name, reason)
        self._batch_finished = Counter(
            "orca:batch_request_success",
            "Finished requests of batches, by finish reason; the times and lengths of other metrics do not have them",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        for reason in FINISH_REASONS:
            self._batch_finished.labels(model_name, reason)
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "Time from arrival to first token", LONG_LATENCIES
        )
        self._inter_token = self._histogram("inter_token_latency_seconds", "Time between consecutive tokens", LATENCIES)
        self._latency = self._histogram(
            "e2e_request_latency_seconds", "Time from arrival to last token", LONG_LATENCIES
        )
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first", LATENCIES
        )
        self._queue_time = self._histogram(
            "request_queue_time_seconds",
            "Time in the queue, after the prompt was tokenized, per request",
            LONG_LATENCIES,
        )
        self._prefill_time = self._histogram(
            "request_prefill_time_seconds",
            "Time from the first iteration to the first token, per request",
            LONG_LATENCIES,
        )
        self._decode_time = self._histogram(
            "request_decode_time_seconds", "Time from the first to the last token, per request", LONG_LATENCIES
        )
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens per request", TOKENS)
        self._request_output = self._histogram("request_generation_tokens", "Generated tokens per request", TOKENS)
        self._batch_size = self._histogram("iteration_batch_size", "Requests per iteration", BATCHES)
        self._batch_tokens = self._histogram("iteration_tokens_total", "Tokens per iteration", TOKENS)
        self._stages = StageMetrics(self.registry, model_name)
        self._grammars = Counter(
            "orca:grammars",
            "Grammars of requests with structured output: compiled, found in the cache, or refused",
            ["model_name", "result"],
            registry=self.registry,
        )
        for result in GRAMMAR_RESULTS:
            self._grammars.labels(model_name, result)
        self._responses = Counter(
            "orca:http_requests",
            "HTTP requests to the API port, by route and status of the response; refused requests, too. The route of "
            "paths without one is unknown",
            ["model_name", "route", "status"],
            registry=self.registry,
        )
        self._routes: set[str] = set()
        self._engine: EngineMaster | None = None

    def watch(self, engine: EngineMaster) -> None:
        """Add the gauges of `engine`; the stages are from now on those of its pipelines."""
        self._engine = engine
        self._gauge("num_requests_running", "Requests that hold K/V slots", lambda: engine.snapshot.num_running)
        self._gauge(
            "num_requests_waiting",
            "Requests in the queue, without those of batches",
            lambda: engine.snapshot.num_waiting,
        )
        self._gauge(
            "expected_wait_seconds",
            "Expected wait of a new request in the queue",
            lambda: engine.snapshot.expected_wait,
        )
        self._gauge(
            "exactness_level",
            "Level of exactness of the pipelines (docs/contracts.md, section 7): 1, or 2 with --deterministic on",
            lambda: 2 if (formed := engine.snapshot.formed) is not None and formed.exactness == "L2" else 1,
        )
        self._gauge("kv_cache_usage_perc", "Fraction of held K/V slots, 0 to 1", lambda: engine.snapshot.cache_usage)
        self.registry.register(
            CacheConfig(self._model_name, lambda: engine.snapshot, lambda: engine.config.prefix_caching)
        )

    def watch_journal(self, status: Callable[[], JournalStatus]) -> None:
        """Add the gauges of the journal."""
        self._gauge(
            "journal_on",
            "With --journal: 1 while accepted requests are recorded, 0 after a failed write",
            lambda: status().state is JournalState.ON,
        )
        self._gauge("journal_bytes", "With --journal: bytes of its files", lambda: status().num_bytes)

    def watch_batches(self, num_unfinished: Callable[[], int], num_bytes: Callable[[], int]) -> None:
        """Add the gauges of /v1/batches and /v1/files."""
        self._gauge("batches_unfinished", "With --batch-directory: batches without a final status", num_unfinished)
        self._gauge("batch_file_bytes", "With --batch-directory: bytes of all files", num_bytes)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        if self._engine is not None:
            self._stages.keep({pipeline.id for pipeline in self._engine.snapshot.topology.pipelines})
        text = generate_latest(self.registry).decode()
        return (text + under_vllm_names(text) if self._vllm_names else text).encode()

    def on_token(self, prompt_tokens: int, generated: int, since_arrival: float, since_last: float) -> None:
        """See RequestMetrics."""
        if generated == 1:
            self._prompt_tokens.inc(prompt_tokens)
            self._first_token.observe(since_arrival)
        else:
            self._inter_token.observe(since_last)
        self._generation_tokens.inc()

    def on_finish(
        self, reason: str, prompt_tokens: int, generated: int, seconds: float, since_first_token: float
    ) -> None:
        """See RequestMetrics."""
        self._finished.labels(self._model_name, reason).inc()
        if reason not in SUCCESSES:
            return
        self._latency.observe(seconds)
        if generated:
            self._decode_time.observe(since_first_token)
        else:  # an embedding
            self._prompt_tokens.inc(prompt_tokens)
        self._note_lengths(prompt_tokens, generated)
        if generated > 1:
            self._per_token.observe(since_first_token / (generated - 1))

    def on_untimed_token(self, prompt_tokens: int, generated: int) -> None:
        """See RequestMetrics."""
        if generated == 1:
            self._prompt_tokens.inc(prompt_tokens)
        self._generation_tokens.inc()

    def on_batch_finish(self, reason: str) -> None:
        """See RequestMetrics."""
        self._batch_finished.labels(self._model_name, reason).inc()

    def on_resumed_finish(self, reason: str, prompt_tokens: int, generated: int) -> None:
        """See RequestMetrics."""
        self._finished.labels(self._model_name, reason).inc()
        if reason in SUCCESSES:
            self._note_lengths(prompt_tokens, generated)

    def on_grammar(self, result: str) -> None:
        """See RequestMetrics."""
        self._grammars.labels(self._model_name, result).inc()

    def on_response(self, route: str, status: int) -> None:
        """See RequestMetrics."""
        if len(self._routes) < MAX_ROUTES:
            self._routes.add(route)
        self._responses.labels(self._model_name, route if route in self._routes else OTHER_ROUTES, str(status)).inc()

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        """See EngineObserver."""
        self._stages.on_dispatch(sequence, batch)
        self._batch_size.observe(len(batch.requests))
        self._batch_tokens.observe(sum(scheduled.num_inputs for scheduled in batch.requests))
        self._queries.inc(batch.cache_use.num_queried)
        self._hits.inc(batch.cache_use.num_hits)
        self._evictions.inc(batch.cache_use.num_evictions)

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """See StageMetrics."""
        self._stages.on_timing(pipeline, timing)

    def on_preemption(self, count: int) -> None:
        """See EngineObserver."""
        self._preemptions.inc(count)

    def on_drafts(self, num_drafts: int, num_tokens: int, num_accepted: int) -> None:
        """See EngineObserver."""
        self._drafts.inc(num_drafts)
        self._drafted.inc(num_tokens)
        self._accepted.inc(num_accepted)

    def on_first_token(self, queue_seconds: float, prefill_seconds: float) -> None:
        """See EngineObserver."""
        self._queue_time.observe(queue_seconds)
        self._prefill_time.observe(prefill_seconds)

    def _note_lengths(self, prompt_tokens: int, generated: int) -> None:
        self._request_prompt.observe(prompt_tokens)
        self._request_output.observe(generated)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"orca:{name}", text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        gauge = Gauge(f"orca:{name}", text, ["model_name"], registry=self.registry)
        gauge.labels(self._model_name).set_function(read)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"orca:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)
        return histogram.labels(self._model_name)
