"""The span of a request: its parent, its times and its attributes; and a collector that does not answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import Request as HttpRequest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from orca_contract.topology import ModelSpec, PipelineSpec, Topology
from orca_master.endpoint.application import create_app
from orca_master.endpoint.trace_parent import MAX_PARENT_LENGTH, MAX_STATE_LENGTH, parent_of
from orca_master.engine.config import EngineConfig
from orca_master.engine.engine_thread import EngineThread
from orca_master.engine.messages import Choices, Output, Submission, Trace
from orca_master.engine.request_stream import RequestStream
from orca_master.errors import ConfigurationError, RequestError
from orca_master.metrics import request_traces
from orca_master.metrics.prometheus import Metrics
from orca_master.metrics.request_traces import Traces, exporter_of, traces_to
from orca_master.metrics.trace_reports import LOG_SECONDS, FewWarnings, report_few
from orca_master.scheduling.request import FinishReason, Request
from orca_master.scheduling.sampling_parameters import SamplingParameters
from support.scripted_engine import END, MODEL, Scripted, make_model

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE_ID}-b7ad6b7169203331-00"
ARRIVED = time.monotonic()
QUEUED, ADMITTED, FIRST, LAST = (ARRIVED + seconds for seconds in (0.5, 1.5, 3.5, 7.5))


class Recorded:
    """Traces whose spans stay in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = Traces(self.provider)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    @property
    def of_request(self) -> ReadableSpan:
        """The only span of a request."""
        (span,) = (span for span in self.exporter.get_finished_spans() if span.name == "llm_request")
        return span


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def quiet() -> Iterator[None]:
    """Restore the loggers of the SDK."""
    reports = logging.getLogger("opentelemetry")
    handlers = list(reports.handlers)
    yield
    reports.handlers, reports.propagate = handlers, True


def submission_of(index: int = 0, count: int = 1, parent: str = PARENT, **fields: Any) -> Submission:
    """Return one of `count` choices of a request of three prompt tokens."""
    choices = Choices("chatcmpl-1", count, 100) if count > 1 else None
    trace = Trace("chatcmpl-1", "model", count, parent, "vendor=1" if parent else "")
    sampling = SamplingParameters(temperature=0.5, top_p=0.9, choice=index)
    values = {"choices": choices, "arrived": ARRIVED, "trace": trace, **fields}
    prompt = values.pop("prompt", (1, 2, 3))
    return Submission(f"chatcmpl-1-{index}", prompt, 16, sampling, frozenset(), **values)


def stream_of(submission: Submission, admitted: float = ADMITTED, first: float = FIRST) -> RequestStream:
    """Return the stream of an accepted request; `admitted`, `first`: 0.0 before."""
    stream = RequestStream.of(submission, lambda _: None)
    stream.request = Request(submission.request_id, 0, submission.prompt, 16, arrived_at=QUEUED, admitted_at=admitted)
    stream.request.num_cached, stream.request.num_preemptions, stream.request.pipeline = 2, 1, "p0" if admitted else ""
    stream.first, stream.num_generated = first, 5 if first else 0
    return stream


def end(recorded: Recorded, *ends: tuple[RequestStream, str | None], error: str = "") -> None:
    for stream, _ in ends:
        recorded.traces.begin(stream)
    for stream, reason in ends:
        recorded.traces.end(stream, reason, error, LAST)


def test_the_span_of_an_answer_has_parent_attributes_and_phases(recorded):
    end(recorded, (stream_of(submission_of()), "stop"))
    span = recorded.spans.pop("llm_request")
    assert span.parent is not None
    assert (span.kind, span.status.status_code) == (SpanKind.SERVER, StatusCode.UNSET)
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.context.trace_state.get("vendor") == "1"
    attributes = dict(span.attributes or {})
    times = {name: attributes.pop(name) for name in list(attributes) if name.startswith("gen_ai.latency.")}
    assert times == pytest.approx(
        {
            "gen_ai.latency.time_in_queue": 1.0,
            "gen_ai.latency.time_to_first_token": 3.5,
            "gen_ai.latency.e2e": 7.5,
            "gen_ai.latency.time_in_model_prefill": 2.0,
            "gen_ai.latency.time_in_model_decode": 4.0,
            "gen_ai.latency.time_in_model_inference": 6.0,
        }
    )
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "orca",
        "gen_ai.request.model": "model",
        "gen_ai.response.model": "model",
        "gen_ai.request.id": "chatcmpl-1",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.n": 1,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.completion_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.num_sequences": 1,
        "orca.preemptions": 1,
        "orca.pipelines": ("p0",),
        "orca.resumed": False,
    }
    assert span.start_time is not None
    phases = {
        name: [round(((at or 0) - span.start_time) / 1e9, 3) for at in (phase.start_time, phase.end_time)]
        for name, phase in recorded.spans.items()
        if name != "llm_request"
    }
    assert phases == {"queue": [0.5, 1.5], "prefill": [1.5, 3.5], "decode": [3.5, 7.5]}
    parents = {phase.parent and phase.parent.span_id for name, phase in recorded.spans.items() if name in phases}
    assert parents == {span.context.span_id}
    assert abs(span.start_time / 1e9 - time.time()) < 600, "times are of the epoch"


@pytest.mark.parametrize(
    ("admitted", "first", "phases"),
    [(0.0, 0.0, {"queue"}), (ADMITTED, 0.0, {"queue", "prefill"}), (ADMITTED, FIRST, {"queue", "prefill", "decode"})],
    ids=["queue", "prefill", "decode"],
)
def test_an_aborted_request_has_the_phases_that_it_has_reached(recorded, admitted, first, phases):
    end(recorded, (stream_of(submission_of(), admitted, first), "abort"))
    assert recorded.spans.keys() == {"llm_request", *phases}
    span = recorded.of_request
    assert span.attributes is not None
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "abort")
    assert str(span.status.description).startswith("aborted: ")
    assert ("gen_ai.latency.time_to_first_token" in span.attributes) == bool(first)
    assert recorded.spans["queue"].end_time == (span.end_time if not admitted else recorded.spans["prefill"].start_time)


@pytest.mark.parametrize("reason", ["error", "fault"])
def test_a_failed_request_has_its_error(recorded, reason):
    end(recorded, (stream_of(submission_of()), reason), error="pipeline p0 is lost: \udcff")
    span = recorded.of_request
    assert span.attributes is not None
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, reason)
    assert span.status.description == "pipeline p0 is lost: ?", "a text that cannot be encoded loses no batch of spans"


def test_a_request_that_waits_for_its_grammar_is_no_request_of_the_engine_yet(recorded):
    end(recorded, (RequestStream.of(submission_of(), lambda _: None), "abort"))
    assert recorded.spans.keys() == {"llm_request"}


@pytest.mark.parametrize("parent", ["", "ff-nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01"])
def test_a_request_without_a_valid_parent_begins_a_trace(recorded, parent):
    end(recorded, (stream_of(submission_of(parent=parent)), "stop"))
    assert recorded.of_request.parent is None


def test_a_parent_that_is_not_sampled_leaves_no_span(recorded):
    end(recorded, (stream_of(submission_of(parent=UNSAMPLED)), "stop"))
    assert recorded.spans == {}


def test_several_choices_are_one_span(recorded):
    """From the first to the last of them; each prompt counts once, also where an API process has sent copies of it."""
    streams = [stream_of(submission_of(index, 3)) for index in range(3)]
    streams[1].first, streams[1].submission = FIRST - 1, replace(streams[1].submission, prompt=(1, 2, 3))
    end(recorded, *zip(streams, ("stop", "length", "stop"), strict=True))
    attributes = recorded.of_request.attributes
    assert attributes is not None
    assert attributes["gen_ai.response.finish_reasons"] == ("stop", "length", "stop")
    numbers = ("input_tokens", "output_tokens", "num_sequences")
    assert [attributes[f"gen_ai.usage.{name}"] for name in numbers] == [3, 15, 3]
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 2
    assert attributes["gen_ai.latency.time_to_first_token"] == pytest.approx(2.5)
    assert recorded.traces._groups == {}


@pytest.mark.parametrize(("reasons", "finished"), [((None, None), None), (("abort", None), ("abort",))])
def test_refused_choices_leave_nothing(recorded, reasons, finished):
    end(recorded, *((stream_of(submission_of(index, 2)), reason) for index, reason in enumerate(reasons)))
    spans = [span for span in recorded.exporter.get_finished_spans() if span.name == "llm_request"]
    found = [(span.attributes or {})["gen_ai.response.finish_reasons"] for span in spans]
    assert found == ([] if finished is None else [finished])
    assert recorded.traces._groups == {}


@pytest.mark.parametrize("left", [(1, 2), (2,)])
def test_a_resumed_request_counts_the_prompts_of_the_choices_that_were_left(recorded, left):
    """The earlier master has finished the first. Choices share the array of their prompt."""
    prompt = array("I", (1, 2, 3))
    streams = [stream_of(submission_of(index, 3, generated=(7,), prompt=prompt)) for index in left]
    end(recorded, *((stream, "stop") for stream in streams))
    attributes = recorded.of_request.attributes or {}
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.prompt_tokens"]) == (3, 3)


def test_a_request_that_is_admitted_while_it_is_released_has_no_negative_phase(recorded):
    """The engine's thread may admit a request after the time at which the endpoint has released it."""
    end(recorded, (stream_of(submission_of(), admitted=LAST + 0.001, first=0.0), "abort"))
    assert recorded.spans.keys() == {"llm_request", "queue"}
    assert recorded.spans["queue"].end_time == recorded.of_request.end_time


@pytest.mark.parametrize("state", ["a=\x9b31m", "no member", "a=1,a=2", ",".join(f"k{index}=1" for index in range(40))])
def test_a_client_cannot_write_to_the_log(recorded, quiet, caplog, state):
    report_few()
    trace = Trace("chatcmpl-1", "model", 1, PARENT, state)
    end(recorded, (stream_of(submission_of(trace=trace)), "stop"))
    assert recorded.of_request.parent is not None
    assert [record for record in caplog.records if record.name == "orca_master.metrics.trace_reports"] == []


def test_a_header_with_a_key_is_not_logged(quiet, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization Bearer secret")
    asyncio.run(traces_to("http://127.0.0.1:9", "http/protobuf").close())
    assert "Header format invalid" in caplog.text
    assert "secret" not in caplog.text


def test_a_report_is_one_line_of_bounded_length(caplog):
    """A collector, or a proxy before it, chooses the details of an error over gRPC."""
    reports = logging.Logger("reports")
    reports.addHandler(FewWarnings())
    reports.error("details: %s", "<html>\n\x1b[31m" + "a" * 10_000)
    (record,) = caplog.records
    message = record.getMessage()
    assert message.isprintable()
    assert message.startswith("--otlp-traces-endpoint: details: <html>\\n\\x1b[31maaa")
    assert len(message) < 600


def test_a_resumed_request_has_the_phases_from_the_restart_on(recorded):
    """Its clock and its first token are those of the earlier master: no attribute has a time."""
    end(recorded, (stream_of(submission_of(generated=(7, 8))), "stop"))
    assert recorded.spans.keys() == {"llm_request", "queue", "prefill", "decode"}
    attributes = recorded.of_request.attributes or {}
    assert attributes["orca.resumed"] is True
    assert [name for name in attributes if name.startswith("gen_ai.latency.")] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"arrived": -1e300},
        {"max_gen_tokens": 2**64 - 1},
        {"trace": Trace("chatcmpl-1", "\udcff", 2**32 - 1, PARENT)},
    ],
    ids=["arrival", "length", "model"],
)
def test_a_value_that_no_span_can_have_loses_none(recorded, fields):
    """API processes are not trusted, and a folder may be the name of a model. The SDK encodes a whole batch or none."""
    submission = replace(submission_of(), **fields)
    end(recorded, (stream_of(submission), "abort"))
    assert encode_spans(recorded.exporter.get_finished_spans()).SerializeToString()
    assert recorded.of_request.end_time is not None


def test_a_span_that_cannot_be_made_fails_no_request(recorded, monkeypatch, caplog):
    """As with a sampler of another package that raises an exception."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise ValueError("no sample")

    monkeypatch.setattr(recorded.traces._tracer, "start_span", fail)
    end(recorded, *((stream_of(submission_of(index, 2)), "stop") for index in range(2)))
    assert "a span could not be made" in caplog.text
    assert recorded.traces._groups == {}


def test_an_embedding_has_no_parameters_of_sampling(recorded):
    trace = Trace("embd-1", "model", 1, PARENT)
    end(recorded, (stream_of(submission_of(trace=trace, pooling="mean"), first=0.0), "length"))
    attributes = recorded.of_request.attributes or {}
    assert attributes["gen_ai.operation.name"] == "embeddings"
    assert not any(name in attributes for name in ("gen_ai.request.temperature", "gen_ai.request.max_tokens"))
    assert recorded.spans.keys() == {"llm_request", "queue", "prefill"}


def test_the_headers_of_a_request_are_bounded():
    def parent(**headers: Sequence[str]) -> tuple[str, str]:
        lines = [(name.encode(), value.encode()) for name, values in headers.items() for value in values]
        found = parent_of(HttpRequest({"type": "http", "headers": lines}))
        return found.traceparent, found.tracestate

    assert parent() == ("", "")
    assert parent(traceparent=[PARENT], tracestate=["a=1", "b=2"]) == (PARENT, "a=1,b=2")
    assert parent(traceparent=["0" * (MAX_PARENT_LENGTH + 1)], tracestate=["a" * (MAX_STATE_LENGTH + 1)]) == ("", "")


@pytest.mark.parametrize(
    ("path", "body", "prefix", "n"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 2}, "chatcmpl-", 2),
        ("/v1/messages", {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}, "msg_", 1),
        ("/v1/responses", {"input": "a"}, "resp_", 1),
        ("/v1/completions", {"prompt": ["a", "b"]}, "cmpl-", 1),
        ("/v1/embeddings", {"input": "a"}, "embd-", 1),
        ("/score", {"text_1": "a", "text_2": ["b", "c"]}, "score-", 1),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c"]}, "rerank-", 1),
    ],
)
def test_every_route_passes_the_parent_on(tmp_path, path, body, prefix, n):
    async def run() -> tuple[Scripted, dict[str, Any]]:
        scripted = Scripted(make_model(tmp_path, "{{ messages[0].content }}"), f"hi{END}")
        transport = httpx.ASGITransport(create_app(scripted.endpoint))
        async with scripted.template, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post(path, json=body, headers={"traceparent": PARENT, "tracestate": "vendor=1"})
            assert answer.status_code == 200, answer.text
        return scripted, answer.json()

    scripted, answer = asyncio.run(asyncio.wait_for(run(), 60))
    traces = {submission.trace for submission in scripted.engine.submissions}
    (trace,) = traces
    assert trace is not None
    assert (trace.model, trace.n, trace.traceparent, trace.tracestate) == (MODEL, n, PARENT, "vendor=1")
    assert trace.request_id.startswith(prefix)
    assert trace.request_id == answer.get("id", trace.request_id)


class Noted:
    """Traces that note their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def begin(self, stream: RequestStream) -> None:
        self.calls.append(("begin", stream.submission.request_id))

    def end(self, stream: RequestStream, reason: str | None, error: str, now: float) -> None:
        self.calls.append(("end", stream.submission.request_id, str(reason), error))

    async def close(self) -> None:
        self.calls.append(("close",))


def test_the_engine_thread_ends_every_request_once():
    """With its last output or its release, whichever is first; `close` follows the errors of the engine's end."""
    noted = Noted()

    async def play() -> None:
        pipelines = [PipelineSpec(id="a", workers=["unix:/nowhere"])]
        topology, metrics = Topology(model=ModelSpec(path="m", served_name="m"), pipelines=pipelines), Metrics("m")
        engine = EngineThread(topology, EngineConfig(), metrics, metrics, noted)
        engine._thread.start()
        streams = {}
        for name in ("finished", "stopped", "aborted", "refused", "failed"):
            priority = 1 if name == "refused" else 0  # without --scheduling-policy priority
            submission = Submission(name, [1], 4, SamplingParameters(), frozenset(), priority)
            accepted = engine.submit(submission, lambda _: None)
            streams[name] = engine._streams[name]
            (refusal,) = await asyncio.gather(accepted, return_exceptions=True)
            assert isinstance(refusal, RequestError) == (name == "refused"), refusal
        assert {name for name, stream in streams.items() if stream.request is not None} == streams.keys() - {"refused"}
        engine._distribute([Output(name, 1, None) for name in ("finished", "stopped")])
        engine._distribute([Output("finished", 2, FinishReason.LENGTH)])
        for name, ended_as in (("finished", "stop"), ("stopped", "stop"), ("aborted", "abort"), ("refused", None)):
            engine.release(name, ended_as)
        await engine.stop("the test ends")

    asyncio.run(asyncio.wait_for(play(), 60))
    assert [call for call in noted.calls if call[0] != "begin"] == [
        ("end", "finished", "length", ""),
        ("end", "stopped", "stop", ""),
        ("end", "aborted", "abort", ""),
        ("end", "refused", "None", ""),
        ("end", "failed", "error", "the server stops: the test ends"),
        ("close",),
    ]
    assert len([call for call in noted.calls if call[0] == "begin"]) == 5


class Collector(SpanExporter):
    """A collector that answers when `answers` is set."""

    def __init__(self) -> None:
        self.answers, self.reached = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.reached.set()
        self.answers.wait(300)
        return SpanExportResult.FAILURE


def test_nothing_waits_for_a_collector_that_hangs(monkeypatch, caplog):
    """Its queue is bounded: the spans of further requests are dropped. `close` leaves the thread of the SDK behind."""
    monkeypatch.setattr(request_traces, "CLOSE_SECONDS", 0.05)
    collector = Collector()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(collector, max_queue_size=8, max_export_batch_size=8))
    traces = Traces(provider)
    try:
        for _ in range(20):  # their spans are eighty
            stream = stream_of(submission_of())
            traces.begin(stream)
            traces.end(stream, "stop", "", LAST)
        assert collector.reached.wait(60)
        assert not collector.answers.is_set()
        asyncio.run(asyncio.wait_for(traces.close(), 60))
        assert "--otlp-traces-endpoint: the last spans were not sent within 0 s" in caplog.text
    finally:
        collector.answers.set()


def test_reports_of_the_sdk_are_warnings_once_a_minute(caplog, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reports = logging.Logger("reports")
    reports.addHandler(FewWarnings())
    for number in range(3):
        reports.error("Failed to export %s", "spans" if number == 0 else "others", exc_info=False)
    assert [record.getMessage() for record in caplog.records] == [
        "--otlp-traces-endpoint: Failed to export spans (logged once a minute)"
    ]
    now[0] += LOG_SECONDS
    try:
        raise ValueError("a\nb")
    except ValueError:
        reports.exception("Exception while exporting")
    last = caplog.records[-1]
    assert last.levelno == logging.WARNING
    assert last.exc_info is None
    assert last.getMessage() == (
        "--otlp-traces-endpoint: Exception while exporting: ValueError('a\\nb') (logged once a minute)"
    )


def endpoint_of(exporter: SpanExporter) -> object:
    return vars(exporter)["_endpoint"]


def test_a_url_without_a_path_gets_that_of_the_standard(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    for url, expected in (
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("http://a:4318/", "http://a:4318/v1/traces"),
        ("https://a/b?c=d", "https://a/b?c=d"),
    ):
        assert endpoint_of(exporter_of(url, "http/protobuf")) == expected
    assert endpoint_of(exporter_of("http://a:4317", "grpc")) == "a:4317"


@pytest.mark.parametrize(
    ("protocol", "name", "value"),
    [
        ("grpc", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon"),
        ("grpc", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "tar"),
        ("grpc", "OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("http/protobuf", "OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("grpc", "OTEL_BSP_MAX_QUEUE_SIZE", "9" * 30),
        ("grpc", "OTEL_BSP_SCHEDULE_DELAY", "9" * 30),
    ],
)
def test_a_variable_that_the_sdk_refuses_ends_the_start(quiet, monkeypatch, protocol, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigurationError, match=r"^--otlp-traces-endpoint: an environment variable OTEL_… is not valid: "
    ):
        traces_to("http://127.0.0.1:9", protocol)


def test_the_environment_names_the_service_and_the_sampler(quiet, monkeypatch):
    def service_and_sampler() -> tuple[object, str]:
        traces = traces_to("http://127.0.0.1:9", "http/protobuf")
        try:
            return traces._provider.resource.attributes["service.name"], traces._provider.sampler.get_description()
        finally:
            asyncio.run(traces.close())

    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)
    service, sampler = service_and_sampler()
    assert service == "orca"
    assert sampler.startswith("ParentBased{root:AlwaysOnSampler")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert service_and_sampler() == ("mine", "AlwaysOffSampler")
