"""Measures the time and memory in which `orca serve` refuses each of the tests' hostile models.

    PYTHONPATH=tests python benchmarks/hostile_models.py

Prints a line for each model that is not refused with one line and exit code 2, then the seconds from start to exit, and
the maximum resident memory of any process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orca_bench.circumstances import circumstances, line
from support.hostile_models import HOSTILE, make_sound

LIMIT_SECONDS = 120.0


def main() -> None:
    """Print the figures."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(line(circumstances(None)))
    seconds: dict[str, float] = {}
    for name, (damage, _) in HOSTILE.items():
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            make_sound(model)
            damage(model)
            command = [sys.executable, "-P", "-m", "orca_master.cli", "serve", str(model), "--port", "0"]
            began = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
            seconds[name] = time.perf_counter() - began
        if done.returncode != 2 or len(done.stderr.splitlines()) != 1:
            print(f"{name}: exit code {done.returncode}: {done.stderr[-500:]}")
    ordered = sorted(seconds, key=seconds.__getitem__)
    slowest = ", ".join(f"{name} {seconds[name]:.2f} s" for name in ordered[-3:])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{len(seconds)} models: median {statistics.median(seconds.values()):.2f} s; slowest: {slowest}; {peak:.0f} MiB"
    )


if __name__ == "__main__":
    main()
