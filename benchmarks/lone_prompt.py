"""Measures the time to the first token of a lone prompt, for one and for several partitions on the same cores.

    python benchmarks/lone_prompt.py [--partitions 2] [--lengths 500 1000 2000 4000] [-- OPTIONS OF EVERY orca serve]

Three servers, each with all cores and as many threads in total: one partition, several partitions, and several with
`--no-balanced-batches`, which compute no parts of one prompt at the same time. The servers take turns, one request for
one token at a time; llama-shaped model of 110 M random weights. Before the rounds each server answers requests from
which it learns what tokens cost. Printed for each length: medians of the rounds in milliseconds, and the ratios to
several partitions, median with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

from orca_bench.circumstances import circumstances, line
from orca_bench.random_models import save_model
from orca_bench.rounds import ratio
from orca_bench.servers import serve, split, unwind_on_sigterm
from orca_bench.single_request import seconds
from orca_bench.traces import random_tokens


def main() -> None:
    """Print the table."""
    own, options = split(sys.argv[1:], ())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[500, 1000, 2000, 4000], help="tokens of the prompts")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    arguments = parser.parse_args(own)
    unwind_on_sigterm()
    print(line(circumstances(0)))
    several = f"{arguments.partitions} partitions"
    settings: dict[str, tuple[int, list[str]]] = {
        several: (arguments.partitions, []),
        "one part at a time": (arguments.partitions, ["--no-balanced-batches"]),
        "1 partition": (1, []),
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        model = Path(folder) / "model"
        save_model(model, "llama", positions=max(arguments.lengths) + 64)
        cores = len(os.sched_getaffinity(0))
        urls = {}
        for name, (partitions, setting) in settings.items():
            threads = {"OMP_NUM_THREADS": str(max(1, cores // partitions))}
            shared = ["--dtype", arguments.dtype, "--max-batch-size", "8", "-pp", str(partitions), *options]
            urls[name] = servers.enter_context(serve(model, [*shared, *setting], threads))[1]
        source = random.Random(0)
        for url in urls.values():
            for length in arguments.lengths * 2:
                seconds(url, random_tokens(source, length), 16)
        for length in arguments.lengths:
            times: dict[str, list[float]] = {name: [] for name in urls}
            for _ in range(arguments.rounds):
                prompt = random_tokens(source, length)
                for name, url in urls.items():
                    times[name].append(seconds(url, prompt))
            for name, values in times.items():
                print(
                    f"{length} tokens, {name}: {1000 * statistics.median(values):.0f} ms, "
                    f"{ratio(values, times[several])}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
