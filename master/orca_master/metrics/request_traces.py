"""`Traces`: a span per client's request, exported over OTLP (`--otlp-traces-endpoint`).

Imported only with the option, because OpenTelemetry's SDK is an extra. A span is made when its request has ended, from
the times that EngineThread measures for the metrics: nothing is kept open meanwhile, and a token costs nothing. The SDK
reads its environment variables (sampler, headers, TLS, queue, resource). Spans wait in its bounded queue for its own
thread. The tracer provider is not the global one, so that libraries of this process add no spans.

Names of attributes: those of OpenTelemetry's semantic conventions for generative AI, vLLM's where it has others
(`gen_ai.latency.*`, the numbers of tokens, `gen_ai.request.id` and `.n`), and ORCA's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from orca_master.engine.messages import Trace
from orca_master.engine.request_stream import RequestStream
from orca_master.metrics.trace_reports import OPTION, REPORTS, invalid_variable, report_few

SERVICE = "orca"
"""Name of the service if OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES name none."""
CLOSE_SECONDS = 3.0
"""Longest wait for the last export; a cluster kills a master 10 s after its drain (GRACE_SECONDS)."""
OPERATIONS = {"cmpl": "text_completion", **dict.fromkeys(("embd", "score", "rerank"), "embeddings")}
"""Values of gen_ai.operation.name by the prefix of a response's id; `chat` for all others."""
COMPLETE = ("stop", "length")
DELAY = "OTEL_BSP_SCHEDULE_DELAY"

logger = logging.getLogger(__name__)


class Ended(NamedTuple):
    """A choice that has ended; see RequestTraces.end."""

    stream: RequestStream
    reason: str
    error: str
    now: float


@dataclass(slots=True)
class Group:
    """The choices of a request of several: the number of those that run, and those that have ended."""

    num_open: int = 0
    ended: list[Ended] = field(default_factory=list)


class Traces:
    """Implements RequestTraces. `close` ends it."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("orca_master")
        self._propagator = TraceContextTextMapPropagator()
        self._groups: dict[str, Group] = {}

    def begin(self, stream: RequestStream) -> None:
        """See RequestTraces."""
        if (choices := stream.submission.choices) is not None:
            self._groups.setdefault(choices.group_id, Group()).num_open += 1

    def end(self, stream: RequestStream, reason: str | None, error: str, now: float) -> None:
        """See RequestTraces. Refused requests have no span; a request of several choices ends with the last of them."""
        ended = [] if reason is None else [Ended(stream, reason, error, now)]
        if (choices := stream.submission.choices) is not None:
            group = self._groups[choices.group_id]
            group.num_open -= 1
            group.ended += ended
            if group.num_open:
                return
            ended = self._groups.pop(choices.group_id).ended
        if ended and (trace := ended[0].stream.submission.trace) is not None:
            try:
                self._record(trace, ended)
            except Exception:  # of the SDK, or of a sampler of another package: the request has been answered
                REPORTS.exception("a span could not be made")

    async def close(self) -> None:
        """See RequestTraces. Leaves the SDK's thread behind if the collector does not answer within CLOSE_SECONDS."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(closed.set)

        try:
            threading.Thread(target=shut_down, name="traces-end", daemon=True).start()
            await asyncio.wait_for(closed.wait(), CLOSE_SECONDS)
        except (TimeoutError, RuntimeError):  # no answer, or no thread can be started
            logger.warning("%s: the last spans were not sent within %.0f s", OPTION, CLOSE_SECONDS)

    def _record(self, trace: Trace, ended: Sequence[Ended]) -> None:
        """Make the span of a request, and those of its phases."""
        epoch = time.time_ns() - time.monotonic_ns()

        def at(seconds: float) -> int:
            """Return a time of the monotonic clock in nanoseconds since the epoch."""
            return epoch + int(max(0.0, seconds) * 1e9)  # an arrival is what an API process says

        arrived, last = ended[0].stream.arrived, max(entry.now for entry in ended)
        parent = self._propagator.extract(
            {"traceparent": trace.traceparent, "tracestate": trace.tracestate}, context=Context()
        )
        operation = OPERATIONS.get(trace.request_id.partition("-")[0], "chat")
        known: dict[str, AttributeValue] = {"gen_ai.operation.name": operation, "gen_ai.request.model": trace.model}
        span = self._tracer.start_span("llm_request", parent, SpanKind.SERVER, known, start_time=at(arrived))
        if span.is_recording():
            phases = phases_of(ended, last)
            span.set_attributes(attributes_of(trace, ended))
            if not ended[0].stream.is_resumed:  # whose arrival and first token only the earlier master knows
                span.set_attributes(latencies_of(phases, last - arrived, arrived))
            note_failure(span, ended)
            inside = set_span_in_context(span, Context())
            for name, (start, end) in phases.items():
                self._tracer.start_span(name, inside, start_time=at(start)).end(at(end))
        span.end(at(last))


def phases_of(ended: Sequence[Ended], last: float) -> dict[str, tuple[float, float]]:
    """Return start and end of the phases that a request has reached, in seconds of the monotonic clock.

    `queue`: until the first iteration; `prefill`: until the first token; `decode`: until `last`, the end. The request
    is in a phase until its first choice leaves the phase. Those of a request that an earlier master accepted begin with
    this master. The engine's thread may still admit a request after `last`, when it was released.
    """
    streams = [entry.stream for entry in ended]
    requests = [stream.request for stream in streams if stream.request is not None]
    if not requests:
        return {}
    queued = min(request.arrived_at for request in requests)
    admitted = min((request.admitted_at for request in requests if 0 < request.admitted_at <= last), default=0.0)
    first = min((stream.first for stream in streams if stream.first), default=0.0)
    phases = {"queue": (queued, admitted or last)}
    if admitted:
        phases["prefill"] = admitted, first or last
    if first:
        phases["decode"] = first, last
    return phases


def attributes_of(trace: Trace, ended: Sequence[Ended]) -> dict[str, AttributeValue]:
    """Return what a span says about a request and its answer, without times."""
    streams = [entry.stream for entry in ended]
    submission = streams[0].submission
    requests = [stream.request for stream in streams if stream.request is not None]
    of_prompts = one_of_each_prompt(streams)
    num_input = sum(stream.num_prompt_tokens for stream in of_prompts)
    num_output = sum(stream.num_generated for stream in streams)
    num_cached = sum(stream.request.num_cached for stream in of_prompts if stream.request is not None)
    attributes: dict[str, AttributeValue] = {
        "gen_ai.provider.name": SERVICE,
        "gen_ai.request.id": trace.request_id,
        "gen_ai.response.id": trace.request_id,
        "gen_ai.response.model": trace.model,
        "gen_ai.response.finish_reasons": [entry.reason for entry in ended],
        "gen_ai.usage.input_tokens": num_input,
        "gen_ai.usage.prompt_tokens": num_input,
        "gen_ai.usage.output_tokens": num_output,
        "gen_ai.usage.completion_tokens": num_output,
        "gen_ai.usage.cache_read.input_tokens": num_cached,
        "gen_ai.usage.num_sequences": len(streams),
        "orca.preemptions": sum(request.num_preemptions for request in requests),
        "orca.resumed": streams[0].is_resumed,
    }
    if pipelines := sorted({request.pipeline for request in requests if request.pipeline}):
        attributes["orca.pipelines"] = pipelines
    if submission.pooling is None:
        sampling = submission.sampling
        attributes |= {
            "gen_ai.request.max_tokens": submission.max_gen_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.n": trace.n,
            "gen_ai.request.choice.count": trace.n,
        }
    return attributes


def one_of_each_prompt(streams: Sequence[RequestStream]) -> list[RequestStream]:
    """Return the first choice of each prompt.

    An earlier master may have finished the first choices of a resumed request, whose choices share their prompts.
    """
    if streams[0].is_resumed:
        return list({id(stream.submission.prompt): stream for stream in reversed(streams)}.values())
    return [stream for stream in streams if not stream.submission.sampling.choice]


def latencies_of(phases: Mapping[str, tuple[float, float]], seconds: float, arrived: float) -> dict[str, float]:
    """Return vLLM's attributes of times, in seconds. `seconds`: from the arrival of the request to its end."""
    latencies = {"gen_ai.latency.e2e": seconds}
    names = {"queue": "time_in_queue", "prefill": "time_in_model_prefill", "decode": "time_in_model_decode"}
    for phase, (start, end) in phases.items():
        latencies[f"gen_ai.latency.{names[phase]}"] = end - start
    if "prefill" in phases:
        latencies["gen_ai.latency.time_in_model_inference"] = arrived + seconds - phases["prefill"][0]
    if "decode" in phases:
        latencies["gen_ai.latency.time_to_first_token"] = phases["decode"][0] - arrived
    return latencies


def note_failure(span: Span, ended: Sequence[Ended]) -> None:
    """Set error type and status if a choice is not complete: the type is the finish reason of the metrics."""
    failed = [entry for entry in ended if entry.reason not in COMPLETE]
    if not failed:
        return
    cause = next((entry for entry in failed if entry.error), failed[0])
    span.set_attribute("error.type", cause.reason)
    aborted = "aborted: the client left, or the time of the request was over"
    text = cause.error.encode("utf-8", "replace").decode()  # a span that cannot be encoded would lose its whole batch
    span.set_status(Status(StatusCode.ERROR, text or aborted))


def exporter_of(endpoint: str, protocol: str) -> SpanExporter:
    """Return the SDK's exporter for a protocol, "grpc" or "http/protobuf"; raise ConfigurationError.

    A URL without a path gets the standard's `/v1/traces` over HTTP; over gRPC a path means nothing.
    """
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

            return GrpcExporter(endpoint)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        url = urlsplit(endpoint)
        return HttpExporter(url._replace(path="/v1/traces").geturl() if url.path in ("", "/") else endpoint)
    except Exception as error:  # of a value in the environment
        raise invalid_variable(error) from error


def check_delay(text: str) -> None:
    """Raise ValueError for milliseconds between exports for which the SDK's thread could not wait: it would end."""
    if text.strip().isdecimal() and int(text) / 1000 > threading.TIMEOUT_MAX:
        raise ValueError(f"{DELAY}={text:.40} is too large")


def traces_to(endpoint: str, protocol: str) -> Traces:
    """Return traces that are exported to a collector; raise ConfigurationError for an invalid environment variable."""
    report_few()
    exporter = exporter_of(endpoint, protocol)
    try:
        check_delay(os.environ.get(DELAY, ""))
        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # the end of the process waits for nothing
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except Exception as error:  # OverflowError, for example
        raise invalid_variable(error) from error
    return Traces(provider)
