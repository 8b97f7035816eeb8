"""Measures short requests on a busy machine for several spin times of idle OpenMP threads.

    python benchmarks/idle_threads.py [--busy 2] [--rounds 30] [--spins 0 1000 10000 300000]

A thread that waits at the end of a parallel loop spins before it sleeps: in libgomp for GOMP_SPINCOUNT rounds, 300,000
by default. Spinning is fast while all threads run. When other programs run, a spinning thread can occupy the core that
the awaited thread needs. The script starts one server per setting. Each round sends one request to each server in turn,
so that all settings see the same machine. `--busy` programs compute meanwhile; 0: none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from orca_bench.circumstances import circumstances, line
from orca_bench.random_models import save_model
from orca_bench.servers import ended, serve, unwind_on_sigterm


def seconds_of(url: str, seed: int) -> float:
    """Request four tokens for a prompt of 16 tokens; return the seconds."""
    prompt = [1 + (seed * 31 + index * 7) % 200 for index in range(16)]
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()
    return time.perf_counter() - started


def main() -> None:
    """Print a row per setting: median, 90th percentile and maximum of the request times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=2, help="number of programs that compute meanwhile (2)")
    parser.add_argument("--rounds", type=int, default=30, help="requests to each server (30)")
    parser.add_argument("--spins", type=int, nargs="+", default=[0, 1000, 10_000, 300_000], help="GOMP_SPINCOUNT")
    arguments = parser.parse_args()
    unwind_on_sigterm()
    settings = {"one thread": {"OMP_NUM_THREADS": "1"}}
    settings |= {f"spins {spins}": {"GOMP_SPINCOUNT": str(spins)} for spins in arguments.spins}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        save_model(Path(folder))
        options = ["--dtype", "bfloat16", "--kv-slots", "4096"]
        urls = {name: stack.enter_context(serve(Path(folder), options, each))[1] for name, each in settings.items()}
        for url in urls.values():
            seconds_of(url, 0)
        for _ in range(arguments.busy):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], text=True)
            stack.enter_context(ended(busy))
        times: dict[str, list[float]] = {name: [] for name in urls}
        for number in range(arguments.rounds):
            for name, url in urls.items():
                times[name].append(seconds_of(url, number + 1))
    print(line(circumstances(0)))
    print(f"{arguments.busy} busy programs, {arguments.rounds} requests of 16 + 4 tokens, ms")
    for name, values in times.items():
        ordered = sorted(1000 * value for value in values)
        tail = ordered[int(0.9 * (len(ordered) - 1))]
        print(f"{name:>16}: median {statistics.median(ordered):7.1f}  p90 {tail:7.1f}  max {ordered[-1]:7.1f}")


if __name__ == "__main__":
    main()
