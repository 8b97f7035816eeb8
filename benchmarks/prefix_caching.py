"""Measures prefix caching: time to the first token behind a common prefix, and a trace whose prompts share prefixes.

    python benchmarks/prefix_caching.py [--prefix 2000] [--rounds 5] [-- OPTIONS OF EVERY orca serve]

Two servers, one with `--no-enable-prefix-caching`, take turns on the same cores; llama-shaped model of 110 M random
weights. First token: prompts of PREFIX common tokens and 20 of their own, one after the other; each round has a new
prefix. Trace: all requests at once, a third with each of three prefixes of a quarter of PREFIX tokens, and U(16, 128)
tokens of their own, U(1, 64) generated tokens. Printed: medians, and the ratio of the rounds, median with the smallest
and the largest.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
from pathlib import Path

from orca_bench.circumstances import circumstances, line
from orca_bench.open_loop import measure
from orca_bench.random_models import save_model
from orca_bench.rounds import ratio
from orca_bench.servers import serve, split, unwind_on_sigterm
from orca_bench.single_request import seconds
from orca_bench.traces import random_tokens, shared_prefixes

POSITIONS = 4096
OWN = 20
"""Tokens behind the common prefix in the measurement of first tokens."""


def main() -> None:
    """Print the figures."""
    own, options = split(sys.argv[1:], ())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", type=int, default=2000, help="tokens of the common prefix (2000)")
    parser.add_argument("--requests", type=int, default=48, help="requests of the trace (48)")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(own)
    unwind_on_sigterm()
    print(line(circumstances(0)))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        model = Path(folder) / "model"
        save_model(model, "llama", positions=POSITIONS)
        shared = ["--dtype", "bfloat16", *options]
        with_cache, without = (
            servers.enter_context(serve(model, [*shared, flag]))[1]
            for flag in ("--enable-prefix-caching", "--no-enable-prefix-caching")
        )
        firsts, laters, rates, plain = [], [], [], []
        for number in range(arguments.rounds):
            source = random.Random(f"prefix {number}")
            prefix = random_tokens(source, arguments.prefix)
            firsts.append(seconds(with_cache, prefix + random_tokens(source, OWN)))
            laters.append(statistics.median(seconds(with_cache, prefix + random_tokens(source, OWN)) for _ in range(3)))
            requests = shared_prefixes(arguments.requests, number, arguments.prefix // 4)
            rates.append(measure("with the cache", with_cache, model.name, requests)["output_throughput"])
            plain.append(measure("without the cache", without, model.name, requests)["output_throughput"])
        print(
            f"first token: {1000 * statistics.median(firsts):.0f} ms, later {1000 * statistics.median(laters):.0f} ms: "
            f"{ratio(laters, firsts)}"
        )
        print(
            f"trace: {statistics.median(rates):.0f} tokens/s, without the cache {statistics.median(plain):.0f}: "
            f"{ratio(rates, plain)}"
        )


if __name__ == "__main__":
    main()
