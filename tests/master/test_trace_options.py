"""The option of request traces: URL, protocol and packages; refusals are one line that names the option."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from orca_master.commands.trace_options import PROTOCOL_VARIABLES, add_trace_options, check_traces, traces_protocol
from orca_master.errors import ConfigurationError

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
    "command", [("serve", str(MODEL)), ("master", "--pipeline", "unix:/nowhere", "--model", str(MODEL))]
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
