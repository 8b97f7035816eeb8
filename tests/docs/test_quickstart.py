"""examples/quickstart.sh, which `make run` calls, beside stand-ins of orca, curl and sleep."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "quickstart.sh"
NOT_READY = 300
"""Answers of /readyz with an error before the first without: at four per second more than a minute of compiling."""
STAND_INS = {
    "orca": "exec /bin/sleep 600",
    "sleep": "exit 0",
    "curl": f"""
        asked=$(wc -c <asked)
        case "$*" in *readyz*) printf . >>asked; test "$asked" -ge {NOT_READY} || exit 22 ;; esac
        test "$asked" -ge {NOT_READY} || exit 22
        echo 'data: {{"choices": [{{"text": "the answer"}}]}}'
        """,
}


@pytest.fixture
def start(tmp_path):
    """Return a function that starts the script with environment variables; the stand-ins are in its PATH."""
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f'#!/bin/sh\ncd "{tmp_path}"\n{body}\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "asked").touch()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started: list[subprocess.Popen[str]] = []

    def run(**variables: str) -> subprocess.Popen[str]:
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PORT": str(port)} | variables
        process = subprocess.Popen(
            [SCRIPT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_it_waits_for_a_start_that_compiles_for_longer_than_a_minute(start):
    output = start().stdout
    assert output is not None
    lines = []
    for line in output:
        lines.append(line)
        if line.startswith("Serving on"):
            break
    assert "the answer\n" in lines


def test_it_gives_up_a_server_that_is_never_ready(start):
    process = start(SECONDS="600")
    output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == ("the server is not ready after ten minutes\n", 1)
