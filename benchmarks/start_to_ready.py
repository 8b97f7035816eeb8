"""Measures the seconds from the start of `orca serve` to its line `ready`, with a warm and a cold page cache.

    python benchmarks/start_to_ready.py examples/demo-model [-- options of orca serve]

Before a cold start all files of this Python environment, of the interpreter's library and of the model are dropped from
the page cache (posix_fadvise). Files that a process has mapped are not dropped: this script does not import torch, and
no other process that imports torch may run. Caches of disks and hypervisors remain warm. The servers write and use
bytecode, as an installed package has it, whatever PYTHONDONTWRITEBYTECODE says.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path

from orca_bench.circumstances import circumstances, line

EXIT_SECONDS = 60.0


def forget(folders: Iterable[Path]) -> int:
    """Drop all files in the folders from the page cache; return their total bytes."""
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    total += os.fstat(file.fileno()).st_size
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return total


def start(model: Path, options: list[str]) -> float:
    """Return the seconds of one start. Raise StopIteration if the server ends before it is ready."""
    command = [sys.executable, "-m", "orca_master.cli", "serve", str(model), "--port", "0", *options]
    begin = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stderr is not None
        next(text for text in server.stderr if "ready: " in text)
        return time.perf_counter() - begin
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=EXIT_SECONDS)


def main() -> None:
    """Print a line for warm starts and a line for cold starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("options", nargs="*", metavar="-- OPTION", help="options of orca serve")
    arguments = parser.parse_args()
    print(line(circumstances(0)))
    start(arguments.model, arguments.options)  # builds the kernels, writes bytecode, warms the page cache
    warm = [start(arguments.model, arguments.options) for _ in range(arguments.runs)]
    print(f"warm: {_summary(warm)}", flush=True)
    folders = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")} | {arguments.model}
    cold, size = [], 0
    for _ in range(arguments.runs):
        size = forget(folders)
        cold.append(start(arguments.model, arguments.options))
    print(f"cold, {size / 1e9:.1f} GB dropped: {_summary(cold)}")


def _summary(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({', '.join(f'{value:.2f}' for value in sorted(seconds))})"


if __name__ == "__main__":
    main()
