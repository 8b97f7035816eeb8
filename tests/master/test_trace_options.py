"""The option of request traces: URL, protocol and packages; refusals are one line that names the option."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from orca_master.commands.trace_options import (
    OPTION,
    PROTOCOL_VARIABLES,
    add_trace_options,
    check_traces,
    traces_protocol,
)
from orca_master.errors import ConfigurationError
from support.variants import one_short

MODEL = Path(__file__).parents[2] / "examples" / "demo-model"
RUN = """
import sys
from orca_master import cli
missing, *arguments = sys.argv[1:]
sys.modules[missing] = None
sys.exit(cli.main(arguments))
"""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch) -> None:
    for name in PROTOCOL_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def parse(*arguments: str) -> str | None:
    parser = argparse.ArgumentParser()
    add_trace_options(parser)
    url: str | None = parser.parse_args(arguments).otlp_traces_endpoint
    return url


def test_there_are_no_traces_without_the_option():
    assert parse() is None
    check_traces(None)


@pytest.mark.parametrize("url", ["http://a:4317", "https://a.b/c", "grpc://a:4317", "http://[::1]:4318/v1/traces"])
def test_a_url(url):
    assert parse("--otlp-traces-endpoint", url) == url
    check_traces(url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a:4317",
        "ftp://a",
        "http://",
        "http://a:99999",
        "http://a:0",
        "http://a b",
        "http://[a",
        "http://a\n",
        "//a:1",
    ],
)
def test_other_texts_are_refused(text, capsys):
    with pytest.raises(SystemExit) as end:
        parse("--otlp-traces-endpoint", text)
    assert end.value.code == 2
    assert f"--otlp-traces-endpoint: {text!r} is not a URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "protocol"),
    [
        ({}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ""}, "grpc"),
    ],
)
def test_the_environment_chooses_the_protocol(monkeypatch, variables, protocol):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert traces_protocol("http://a:1") == protocol


@pytest.mark.parametrize(
    ("url", "value", "words"),
    [
        (
            "http://a:1",
            "http/json",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json is not supported (choose from grpc, http/protobuf)",
        ),
        ("grpc://a:1", "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is http/protobuf, which needs http://"),
    ],
)
def test_a_protocol_that_is_not_supported(monkeypatch, url, value, words):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", value)
    with pytest.raises(ConfigurationError) as error:
        check_traces(url)
    assert str(error.value).startswith("--otlp-traces-endpoint: ")
    assert words in str(error.value)


@pytest.mark.parametrize(
    "command", one_short([("serve", str(MODEL)), ("master", "--pipeline", "unix:/nowhere", "--model", str(MODEL))])
)
@pytest.mark.parametrize(
    "missing", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"]
)
def test_the_option_without_its_packages(command, missing):
    arguments = [sys.executable, "-P", "-c", RUN, missing, *command, "--otlp-traces-endpoint", "http://127.0.0.1:9"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "--otlp-traces-endpoint needs the extra [traces]: pip install 'orca-serving[traces]' (" in line


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "abc", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be a non-negative integer"),
    ],
)
def test_a_variable_that_the_sdk_refuses_when_it_is_imported(name, value, words):
    variables = os.environ | {name: value}
    arguments = [sys.executable, "-P", "-c", RUN, "absent", "serve", str(MODEL), OPTION, "http://127.0.0.1:9"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, env=variables)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert f"{OPTION}: an environment variable OTEL_… is not valid: {words}" in line


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_PYTHON_CONTEXT", "nonsense", "Failed to load context: nonsense"),
        ("OTEL_RESOURCE_ATTRIBUTES", "nonsense", "Invalid key value resource attribute pair nonsense"),
    ],
)
def test_what_the_sdk_reports_when_it_is_imported_is_a_line(name, value, words):
    check = "import sys; from orca_master.commands.trace_options import check_traces; check_traces(sys.argv[1])"
    arguments = [sys.executable, "-P", "-c", check, "http://127.0.0.1:9"]
    variables = os.environ | {name: value}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, env=variables)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{OPTION}: {words}")
    assert done.returncode == 0


def test_a_url_with_a_password_is_refused(capsys):
    """The exporter over gRPC would take it for a part of the host, and log it."""
    with pytest.raises(SystemExit) as end:
        parse(OPTION, "http://me:secret@collector:4317")
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert "the URL of a collector has no user or password: set OTEL_EXPORTER_OTLP_HEADERS" in message
    assert "secret" not in message


@pytest.mark.parametrize("options", [(), (OPTION, "http://127.0.0.1:9")], ids=["no traces", "traces"])
@pytest.mark.parametrize(
    "command", [("serve", str(MODEL)), ("master", "--pipeline", "unix:/nowhere", "--model", str(MODEL))]
)
def test_a_propagator_that_is_not_installed_is_one_line(command, options):
    """FastAPI imports OpenTelemetry's propagators, also without traces; its import ended with a traceback."""
    variables = os.environ | {"OTEL_PROPAGATORS": "tracecontext, nonsense"}
    arguments = [sys.executable, "-P", "-c", RUN, "absent", *command, *options]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, env=variables)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert f"orca {command[0]}: error: OTEL_PROPAGATORS=tracecontext, nonsense is not valid" in line
    assert "unset it, or install the package of the propagator" in line


def test_a_propagator_that_cannot_be_imported_is_one_line(tmp_path):
    """Its package is installed, but incomplete: an ImportError, as that of a server without OpenTelemetry."""
    package = tmp_path / "broken-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[opentelemetry_propagator]\nbroken = absent_module:Propagator\n")
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(tmp_path)])
    variables = os.environ | {"OTEL_PROPAGATORS": "broken", "PYTHONPATH": path}
    arguments = [sys.executable, "-P", "-c", RUN, "absent", "serve", str(MODEL)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, env=variables)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "OTEL_PROPAGATORS=broken is not valid" in line
    assert "No module named 'absent_module'" in line


def test_propagators_that_are_installed_are_accepted(monkeypatch):
    monkeypatch.setenv("OTEL_PROPAGATORS", "tracecontext,baggage")
    check_traces(None)
