"""An OTLP collector on the loopback interface: takes spans over HTTP and keeps them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What the collector has got. `resource`: attributes of the last export; `headers`: of its HTTP request."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def of_trace(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace, by its id in hexadecimal digits."""
        return [span for span in list(self.spans) if span.trace_id.hex() == trace_id]

    def request(self, trace_id: str) -> Span | None:
        """Return the span of the request of a trace, None before it has come."""
        return next((span for span in self.of_trace(trace_id) if span.name == "llm_request"), None)


def value_of(value: AnyValue) -> Any:
    """Return the value of an attribute."""
    kind = value.WhichOneof("value")
    return [value_of(entry) for entry in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def attributes_of(attributes: Iterator[KeyValue] | Any) -> dict[str, Any]:
    """Return attributes by name."""
    return {attribute.key: value_of(attribute.value) for attribute in attributes}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Yield a running collector; exports to another path than the standard's get 404."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            export = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            collector.headers = {name.lower(): value for name, value in self.headers.items()}
            for of_resource in export.resource_spans:
                collector.resource = attributes_of(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    collector.spans += of_scope.spans
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
