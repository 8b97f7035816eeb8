"""`orca bench`: runs the benchmark `serve` or `engine`."""

from __future__ import annotations

import sys

from orca_bench import engine, serve

COMMANDS = {"serve": serve.main, "engine": engine.main}


def main(argv: list[str]) -> int:
    """Run `orca bench BENCHMARK …` and return the exit code."""
    if not argv or argv[0] not in COMMANDS:
        print(f"orca bench: error: a benchmark is expected: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return COMMANDS[argv[0]](argv[1:])
