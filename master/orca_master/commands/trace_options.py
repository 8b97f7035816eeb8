"""The option of request traces, `--otlp-traces-endpoint`, and its check, which needs the packages of an extra."""

from __future__ import annotations

import argparse
import logging
import os
from urllib.parse import urlsplit

from orca_master.errors import ConfigurationError
from orca_master.metrics.trace_reports import OPTION, invalid_variable, report_few

PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOLS = ("grpc", "http/protobuf")
"""The first is vLLM's default."""
PROPAGATORS = "OTEL_PROPAGATORS"
SCHEMES = {"grpc": ("http", "https", "grpc"), "http/protobuf": ("http", "https")}


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        OPTION,
        type=collector_url,
        metavar="URL",
        help="OTLP collector that gets a span per request, as http://collector:4317; over HTTP if "
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is http/protobuf; needs the extra [traces] (none)",
    )


def collector_url(text: str) -> str:
    """Parse the URL of a collector."""
    try:
        url = urlsplit(text)
        valid = url.scheme in SCHEMES["grpc"] and bool(url.hostname) and url.port != 0 and text.isascii()
    except ValueError:
        valid = False
    if not valid or any(character.isspace() for character in text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL of a collector, as http://collector:4317")
    if "@" in url.netloc:
        raise argparse.ArgumentTypeError(
            "the URL of a collector has no user or password: set OTEL_EXPORTER_OTLP_HEADERS instead"
        )
    return text


def traces_protocol(endpoint: str) -> str:
    """Return the protocol that the environment chooses, one of PROTOCOLS; raise ConfigurationError."""
    variable = next((name for name in PROTOCOL_VARIABLES if os.environ.get(name)), None)
    protocol = PROTOCOLS[0] if variable is None else os.environ[variable].strip()
    if protocol not in PROTOCOLS:
        raise ConfigurationError(
            f"{OPTION}: {variable}={protocol} is not supported (choose from {', '.join(PROTOCOLS)})"
        )
    if urlsplit(endpoint).scheme not in SCHEMES[protocol]:
        raise ConfigurationError(f"{OPTION}: {endpoint}: {variable} is {protocol}, which needs http:// or https://")
    return protocol


def check_propagators() -> None:
    """Raise ConfigurationError for propagators with which FastAPI cannot be imported.

    FastAPI imports the global propagators of OpenTelemetry, which ORCA does not use, also without traces.
    """
    if not (names := os.environ.get(PROPAGATORS)):
        return
    logging.getLogger("opentelemetry.propagate").disabled = True  # it logs a traceback before it raises
    try:
        import opentelemetry.propagate  # noqa: F401
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in ("opentelemetry", "opentelemetry.propagate"):
            return  # a FastAPI that does not need it
        raise ConfigurationError(
            f"{PROPAGATORS}={names:.100} is not valid: unset it, or install the package of the propagator ({error})"
        ) from error


def check_traces(endpoint: str | None) -> None:
    """Raise ConfigurationError for a missing package, the protocol, or a variable that is invalid to an import."""
    check_propagators()
    if endpoint is None:
        return
    protocol = traces_protocol(endpoint)
    report_few()
    try:
        import opentelemetry.sdk.trace

        if protocol == "grpc":
            import opentelemetry.exporter.otlp.proto.grpc.trace_exporter
        else:
            import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{OPTION} needs the extra [traces]: pip install 'orca-serving[traces]' ({error})"
        ) from error
    except Exception as error:
        raise invalid_variable(error) from error
