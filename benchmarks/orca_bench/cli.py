"""`orca bench`: runs the benchmark `serve` or `engine`."""

from __future__ import annotations

import sys

from orca_bench import engine, serve

HELP = """usage: orca bench BENCHMARK [options]

benchmarks:
  serve      send load to a server and measure latency and throughput
  engine     time batches of equal requests without a scheduler

orca bench BENCHMARK --help lists the options of a benchmark."""
COMMANDS = {"serve": serve.main, "engine": engine.main}


def main(argv: list[str]) -> int:
    """Run `orca bench BENCHMARK …` and return the exit code."""
    if argv and argv[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if not argv or argv[0] not in COMMANDS:
        print(f"orca bench: error: a benchmark is expected: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return COMMANDS[argv[0]](argv[1:])
