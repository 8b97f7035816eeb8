"""Measures times to first tokens and between tokens under load, for several settings of `orca serve` beside each other.

    python benchmarks/inter_token_latency.py [--loads 0.5 0.8 0.95] [--rounds 3] [-- SETTING ...]

A setting is one argument with options, as "--target-itl 100"; default: no target, and two targets. All servers share
one core and take turns; the client uses the other. Load: the paper's trace at half of its lengths, Poisson arrivals at
fractions of the first setting's peak; llama-shaped model of 110 M random weights, bf16. Printed: peak of each setting,
then for each load the medians of the rounds: time to first token and inter-token latency, p50 and p99, milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from pathlib import Path

from orca_bench.circumstances import circumstances, line
from orca_bench.open_loop import measure
from orca_bench.random_models import save_model
from orca_bench.servers import serve, split, unwind_on_sigterm
from orca_bench.traces import shortened, synthetic, with_arrivals

SETTINGS = ("--target-itl 0", "--target-itl 200", "--target-itl 100")
SHOWN = ("median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms")


def main() -> None:
    """Print the table."""
    own, settings = split(sys.argv[1:], SETTINGS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.8, 0.95])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16)
    arguments = parser.parse_args(own)
    unwind_on_sigterm()
    print(line(circumstances(0)))
    cores = sorted(os.sched_getaffinity(0))
    requests = shortened(synthetic("paper", arguments.requests, 0), 0.5)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        model = Path(folder) / "model"
        save_model(model, "llama")
        shared = ["--dtype", "bfloat16", "--max-batch-size", str(arguments.batch_size)]
        os.sched_setaffinity(0, cores[-1:])  # inherited by the servers
        urls = {
            setting: servers.enter_context(serve(model, [*shared, *setting.split()], {"OMP_NUM_THREADS": "1"}))[1]
            for setting in settings
        }
        os.sched_setaffinity(0, cores[:1])

        def run(setting: str, rate: float) -> dict[str, float]:
            return measure(setting, urls[setting], model.name, with_arrivals(requests, rate, 1.0, 0))

        peaks: dict[str, list[float]] = {setting: [] for setting in settings}
        for _ in range(arguments.rounds + 1):
            for setting in settings:
                peaks[setting].append(run(setting, float("inf"))["request_throughput"])
        for setting, values in peaks.items():
            print(f"peak {statistics.median(values[1:]):.2f} requests/s: {setting or 'default'}", flush=True)
        peak = statistics.median(peaks[settings[0]][1:])  # the first round is a warm-up
        for load in arguments.loads:
            rows: dict[str, list[dict[str, float]]] = {setting: [] for setting in settings}
            for _ in range(arguments.rounds):
                for setting in settings:
                    rows[setting].append(run(setting, load * peak))
            for setting, figures in rows.items():
                medians = [statistics.median(row[name] for row in figures) for name in SHOWN]
                print(
                    f"{load:.0%}: TTFT {medians[0]:.0f}, {medians[1]:.0f}; ITL {medians[2]:.0f}, {medians[3]:.0f}: "
                    f"{setting or 'default'}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
