"""`--otlp-traces-endpoint`: what a collector gets from a whole server, and a server whose collector does not answer."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.checkpoints import with_long_context, with_tokenizer
from support.collector import Collector, attributes_of, collecting
from support.served import Served, eventually, serve

NAME = "llama-gqa-tied"
ENDLESS = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True, "temperature": 0}
VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_SERVICE_NAME")


@pytest.fixture(scope="module")
def model(checkpoint, tmp_path_factory) -> Path:
    longer = with_long_context(checkpoint(NAME), tmp_path_factory.mktemp("longer"))
    return with_tokenizer(longer, tmp_path_factory.mktemp("traces"), eos=0)


@contextlib.contextmanager
def traced(model: Path, *options: str) -> Iterator[tuple[Collector, Served]]:
    """Yield a collector, and a server that exports to it over HTTP ten times a second."""
    with pytest.MonkeyPatch.context() as patch, collecting() as collector:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=mine")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.namespace.name=here")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        endpoint = ("--otlp-traces-endpoint", collector.url)
        with serve(model, *endpoint, "--drain-timeout", "1", "--max-batch-size", "4", *options) as served:
            yield collector, served


@pytest.fixture(
    scope="module",
    params=[("--api-processes", "2"), pytest.param((), marks=pytest.mark.long)],
    ids=["processes", "alone"],
)
def server(model, request) -> Iterator[tuple[Collector, Served]]:
    """Yield a collector and a server for the tests that leave it serving."""
    with traced(model, *request.param) as started:
        yield started


def parent(sampled: bool = True) -> tuple[str, str, dict[str, str]]:
    """Return the ids of a new trace and of a span in it, and their header."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, {"traceparent": f"00-{trace_id}-{span_id}-{sampled:02d}"}


def span_of(collector: Collector, trace_id: str) -> Span:
    """Wait for the span of the request of a trace."""
    assert eventually(lambda: collector.request(trace_id) is not None, 60), collector
    span = collector.request(trace_id)
    assert span is not None
    return span


def test_the_span_of_a_completion(server):
    collector, served = server
    trace_id, span_id, headers = parent()
    body = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True, "temperature": 0.5, "n": 2, "seed": 1}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=120).json()
    span = span_of(collector, trace_id)
    assert (span.parent_span_id.hex(), span.kind, span.status.code) == (span_id, Span.SPAN_KIND_SERVER, 0)
    attributes = attributes_of(span.attributes)
    assert {name: attributes[f"gen_ai.{name}"] for name in ("request.id", "response.id")} == {
        "request.id": answer["id"],
        "response.id": answer["id"],
    }
    usage = answer["usage"]
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.response.model": NAME,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.n": 2,
        "gen_ai.usage.prompt_tokens": usage["prompt_tokens"],
        "gen_ai.usage.completion_tokens": usage["completion_tokens"],
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "orca.preemptions": 0,
        "orca.pipelines": ["local-0"],
        "orca.resumed": False,
    }
    assert {name: attributes[name] for name in expected} == expected
    phases = {phase.name: phase for phase in collector.of_trace(trace_id) if phase.parent_span_id == span.span_id}
    assert phases.keys() == {"queue", "prefill", "decode"}
    order = [phases[name] for name in ("queue", "prefill", "decode")]
    times = [span.start_time_unix_nano, *(phase.start_time_unix_nano for phase in order), span.end_time_unix_nano]
    assert times == sorted(times)
    first = attributes["gen_ai.latency.time_to_first_token"]
    assert 0 <= attributes["gen_ai.latency.time_in_queue"] <= first <= attributes["gen_ai.latency.e2e"]
    assert {name: collector.resource[name] for name in ("service.name", "k8s.namespace.name")} == {
        "service.name": "orca",
        "k8s.namespace.name": "here",
    }
    assert collector.headers["tenant"] == "mine"


@pytest.mark.parametrize(
    ("path", "body", "prefix"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}, "chatcmpl-"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 16}, "resp_"),
        ("/v1/messages", {"model": NAME, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}, "msg_"),
        ("/v1/embeddings", {"input": ["a", "b"]}, "embd-"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "rerank-"),
    ],
)
def test_every_route_has_a_span_under_its_parent(server, path, body, prefix):
    collector, served = server
    trace_id, span_id, headers = parent()
    assert httpx.post(f"{served.url}{path}", json=body, headers=headers, timeout=120).status_code == 200
    span = span_of(collector, trace_id)
    assert span.parent_span_id.hex() == span_id
    assert attributes_of(span.attributes)["gen_ai.request.id"].startswith(prefix)


def test_a_parent_that_is_not_sampled_has_no_span(server):
    collector, served = server
    (unsampled, _, without), (sampled, _, headers) = parent(sampled=False), parent()
    for fields in (without, headers):
        body = {"prompt": "a", "max_tokens": 1}
        assert httpx.post(f"{served.url}/v1/completions", json=body, headers=fields, timeout=120).status_code == 200
    span_of(collector, sampled)
    assert collector.of_trace(unsampled) == []


def test_a_client_that_leaves(server):
    collector, served = server
    trace_id, _, headers = parent()
    with httpx.stream("POST", f"{served.url}/v1/completions", json=ENDLESS, headers=headers, timeout=120) as stream:
        next(stream.iter_lines())
    span = span_of(collector, trace_id)
    attributes = attributes_of(span.attributes)
    assert (span.status.code, attributes["error.type"]) == (Status.STATUS_CODE_ERROR, "abort")
    assert attributes["gen_ai.response.finish_reasons"] == ["abort"]


@pytest.mark.long
def test_the_error_of_a_request_at_the_end_of_the_server_is_sent(model):
    """The drain lasts a second, after which the engine ends the request; the last export follows."""
    with traced(model) as (collector, served):
        trace_id, _, headers = parent()
        with httpx.stream("POST", f"{served.url}/v1/completions", json=ENDLESS, headers=headers, timeout=120) as stream:
            lines = stream.iter_lines()
            next(lines)
            served.process.send_signal(signal.SIGTERM)
            assert any("the server ends" in line for line in lines)
        span = span_of(collector, trace_id)
        assert (span.status.code, attributes_of(span.attributes)["error.type"]) == (Status.STATUS_CODE_ERROR, "error")
        assert "the server ends" in span.status.message


@pytest.mark.long
def test_a_request_that_a_restarted_master_continues_stays_under_its_parent(model, tmp_path):
    with traced(model, "--journal", str(tmp_path / "journal")) as (collector, served):
        trace_id, span_id, headers = parent()
        body = {**ENDLESS, "max_tokens": 1000}
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.stream("POST", f"{served.url}/v1/completions", json=body, headers=headers, timeout=120) as stream,
        ):
            lines = stream.iter_lines()
            next(lines)
            before = served.master
            os.kill(before, signal.SIGKILL)
            assert "data: [DONE]" not in list(lines)
        assert eventually(lambda: served.has_other_master(before))
        span = span_of(collector, trace_id)
        attributes = attributes_of(span.attributes)
        assert (span.parent_span_id.hex(), attributes["orca.resumed"]) == (span_id, True)
        assert attributes["gen_ai.usage.output_tokens"] == 1000
        assert [name for name in attributes if name.startswith("gen_ai.latency.")] == []
        phases = {phase.name for phase in collector.of_trace(trace_id) if phase.parent_span_id == span.span_id}
        assert phases == {"queue", "prefill", "decode"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "listens"), [("http/protobuf", True), ("http/protobuf", False), ("grpc", True), ("grpc", False)]
)
def test_a_collector_that_does_not_answer(model, monkeypatch, protocol, listens):
    """It accepts no connection, or nobody listens: requests are answered, and the server ends in time."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not listens:
            silent.close()
        with serve(model, "--otlp-traces-endpoint", f"http://127.0.0.1:{port}") as served:
            for _ in range(10):
                body = {"prompt": "a", "max_tokens": 1}
                assert httpx.post(f"{served.url}/v1/completions", json=body, timeout=120).status_code == 200
            assert served.stop() == 0
        reports = [line for line in served.log if "--otlp-traces-endpoint" in line]
        assert reports, served.log
        assert len(reports) <= 6, reports
        assert all("WARNING" in line for line in reports)
        assert not any("Traceback" in line for line in served.log)
