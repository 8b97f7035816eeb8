"""Starts the servers of benchmarks, waits until they are ready, and ends them with a timeout."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orca_protos.command_line import OneLineParser

EXIT_SECONDS = 30.0
"""Time between SIGTERM and SIGKILL."""
DEMO = Path(__file__).parents[2] / "examples" / "demo-model"
TWO_PARTITIONS = ("-pp", "2", "--dtype", "float32")
READY = re.compile(r"ready: \S+ on (http://\S+)")


def unwind_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that `finally` blocks end the started processes."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def split(arguments: Sequence[str], default: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of a benchmark and, after `--`, those of `orca serve`, `default` without `--`."""
    if "--" not in arguments:
        return list(arguments), list(default)
    separator = list(arguments).index("--")
    return list(arguments[:separator]), list(arguments[separator + 1 :])


def given(options: Sequence[str], *names: str) -> str | None:
    """Return the last value of an option of `orca serve`, by any of its names; None without it.

    Ends the program with exit code 2 and one line if the value is missing.
    """
    parser = OneLineParser(prog="orca serve", add_help=False)
    parser.add_argument(*names, dest="value")
    value: str | None = parser.parse_known_args(options)[0].value
    return value


def ranks_per_worker(options: Sequence[str]) -> int:
    """Return the ranks of each worker of an `orca serve` with these options."""
    return int(given(options, "-tp", "--tensor-parallel-size") or 1)


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """End a process at the exit of the context: SIGTERM, and SIGKILL after EXIT_SECONDS."""
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def url_when_ready(server: subprocess.Popen[str]) -> str:
    """Return the URL that a server prints to its `stderr` pipe, and drain the pipe on a thread from then on.

    Raises SystemExit with the server's last lines if the server ends before.
    """
    assert server.stderr is not None
    last = collections.deque[str](maxlen=3)
    for line in server.stderr:  # ends with the process, whose start has timeouts
        if ready := READY.search(line):
            threading.Thread(target=collections.deque, args=(server.stderr, 0), daemon=True).start()
            return ready[1]
        last.append(line)
    raise SystemExit(f"error: the server did not start: {''.join(last)}")


@contextlib.contextmanager
def serve(
    model: Path, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `orca serve` on a free port; yield its process and its URL once it is ready.

    `environment`: variables in addition to those of this process. Prefix caching is off unless the options turn it on:
    benchmarks repeat prompts, to compute them.
    """
    program = [sys.executable, "-P", "-m", "orca_master.cli", "serve", str(model)]
    command = [*program, "--port", "0", "--disable-log-requests", "--no-enable-prefix-caching", *options]
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    with ended(process):
        yield process, url_when_ready(process)
