"""Mistakes on the command line of `orca operator`: one line and exit code 2."""

from __future__ import annotations

import socket

import pytest
from orca_operator import cli
from orca_operator.cli import main


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--certificate-propagation", "0"], "'0' is not a whole number from 1 to 86400"),
        (["--certificate-propagation", "86401"], "'86401' is not a whole number from 1 to 86400"),
        (["--certificate-propagation", "9" * 5000], "is not a whole number from 1 to 86400"),
        (["--certificate-propagation", "a minute"], "'a minute' is not a whole number"),
        (["--liveness-port", "65536"], "'65536' is not a port"),
        (["--metrics-port", "x"], "'x' is not a port"),
        (["--metrics-port", "8080", "--liveness-port", "8080"], "--metrics-port and --liveness-port must differ"),
        (["--all-namespaces", "--namespace", "a"], "--all-namespaces and --namespace exclude each other"),
    ],
)
def test_mistakes_on_the_command_line(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("orca operator: error: ")
    assert words in line


def test_a_port_in_use_ends_the_operator_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(cli, "connect", lambda _on_write: None)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--metrics-port", str(port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("orca operator: error: ")
    assert str(port) in line


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (None, "http://0.0.0.0:8080/healthz"),
        ("10.0.0.7", "http://10.0.0.7:8080/healthz"),
        ("fd00::7", "http://[fd00::7]:8080/healthz"),
    ],
)
def test_the_probe_listens_at_the_address_of_the_pod(address, url, monkeypatch):
    used = []

    async def run(_namespaces, _images, liveness, _metrics_port, _propagation):
        used.append(liveness)

    monkeypatch.setattr(cli, "run", run)
    monkeypatch.delenv("POD_IP", raising=False)
    if address is not None:
        monkeypatch.setenv("POD_IP", address)
    assert main(["--liveness-port", "8080"]) == 0
    assert used == [url]
