"""Measures pipelines of one and of two partitions beside each other on the same cores, and what their stages wait for.

    python benchmarks/bubbles.py [--rounds 3] [--requests 40] [--max-batch-size 8] [-- OPTIONS OF EVERY orca serve]

One server for each number of partitions, all with the same number of threads in total: P partitions of T / P threads
on T cores. The paper's trace, all requests at once, a model of 110 M random weights; the servers take turns. Printed
for each server: tokens per second, median of the rounds, and its ratio to the first server, median with the smallest
and the largest; for each stage, of the last round, the proportion of the time in which it computes, waits for another
stage, and waits for a message (`orca_bench.timeline`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from orca_bench.circumstances import circumstances, line
from orca_bench.open_loop import measure
from orca_bench.random_models import save_model
from orca_bench.rounds import ratio
from orca_bench.servers import serve, split, unwind_on_sigterm
from orca_bench.timeline import stage_times
from orca_bench.traces import TracedRequest, synthetic, with_arrivals

LONGEST_WAIT = 3600
"""Seconds that a request may be expected to wait."""


def main() -> None:
    """Print the table."""
    own, options = split(sys.argv[1:], ())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--max-batch-size", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    arguments = parser.parse_args(own)
    unwind_on_sigterm()
    print(line(circumstances(0)))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        model = Path(folder) / "model"
        save_model(model)
        cores = len(os.sched_getaffinity(0))
        shared = ["--dtype", arguments.dtype, "--max-batch-size", str(arguments.max_batch_size)]
        shared += ["--max-expected-wait", str(LONGEST_WAIT), *options]  # all requests come at once
        urls, logs = {}, {}
        for partitions in arguments.partitions:
            logs[partitions] = Path(folder) / f"{partitions}.jsonl"
            extra = ["-pp", str(partitions), "--iteration-log", str(logs[partitions])]
            threads = {"OMP_NUM_THREADS": str(max(1, cores // partitions))}
            urls[partitions] = servers.enter_context(serve(model, [*shared, *extra], threads))[1]

        def run(partitions: int, trace: list[TracedRequest]) -> tuple[float, list[dict[str, Any]]]:
            begin = time.monotonic()
            at_once = with_arrivals(trace, float("inf"), 1.0, 0)
            figures = measure(f"{partitions} partitions", urls[partitions], model.name, at_once)
            lines = [json.loads(text) for text in logs[partitions].read_text().splitlines()]
            return float(figures["output_throughput"]), [one for one in lines if one["stages"][0][0] > begin]

        rates: dict[int, list[float]] = {partitions: [] for partitions in urls}
        lines: dict[int, list[dict[str, Any]]] = {}
        for partitions in urls:
            run(partitions, synthetic("paper", 4, 1))  # warm-up
        for seed in range(arguments.rounds):
            for partitions in urls:
                rate, lines[partitions] = run(partitions, synthetic("paper", arguments.requests, seed))
                rates[partitions].append(rate)
        first = rates[arguments.partitions[0]]
        for partitions, values in rates.items():
            print(f"{partitions} partitions: {statistics.median(values):.0f} tokens/s, {ratio(values, first)}")
            iterations = sorted(lines[partitions], key=lambda one: int(one["sequence"]))
            for stage, spent in enumerate(stage_times([one["stages"] for one in iterations])):
                total = spent.busy + spent.other_stage + spent.message
                print(
                    f"  stage {stage}: busy {spent.busy / total:.0%}, another stage {spent.other_stage / total:.0%}, "
                    f"message {spent.message / total:.0%}, {spent.busy / len(iterations) * 1000:.1f} ms per iteration"
                )


if __name__ == "__main__":
    main()
