"""Compares a worker under a CPU quota with as many threads as the quota allows and with as many threads as cores.

    python benchmarks/cpu_limit.py [--quota 1.0] [--rounds 3] [examples/demo-model]

The worker runs in a control group created by this script (version 1 or 2; needs root), master and clients outside
of it. A period is 100 ms; a period is throttled if the quota runs out before its end: all threads then wait.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orca_bench.circumstances import circumstances, line
from orca_bench.servers import ended, url_when_ready

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
THREADS = re.compile(r"rank 0: (.*)")


@contextlib.contextmanager
def limited_group(quota: float) -> Iterator[Path]:
    """Create a control group of `quota` CPUs and remove it at the end; raise OSError without permission."""
    version2 = (CGROUPS / "cgroup.controllers").is_file()
    folder = (CGROUPS if version2 else CGROUPS / "cpu") / f"orca-cpu-limit-{os.getpid()}"
    folder.mkdir()
    try:
        limit = str(round(quota * PERIOD_US))
        if version2:
            (folder / "cpu.max").write_text(f"{limit} {PERIOD_US}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(limit)
        yield folder
    finally:
        folder.rmdir()


def statistic(folder: Path) -> tuple[int, int]:
    """Return the number of periods so far in which the group was runnable, and of throttled periods."""
    counters = dict(entry.split() for entry in (folder / "cpu.stat").read_text().splitlines())
    return int(counters["nr_periods"]), int(counters["nr_throttled"])


def generate(url: str, seed: int) -> int:
    """Request one completion; return its number of tokens."""
    prompt = [1 + (seed * 31 + index * 7) % 200 for index in range(64)]
    body = {"prompt": prompt, "max_tokens": 128, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def measure(model: Path, quota: float, threads: int | None, clients: int) -> tuple[str, float, int, int]:
    """Return the worker's log line about its threads, tokens per second, periods and throttled periods of one load.

    `threads` sets OMP_NUM_THREADS; None leaves the number to the worker.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    setting = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    with (
        limited_group(quota) as group,
        tempfile.TemporaryDirectory(prefix="orca-") as folder,
        Path(folder, "log").open("w") as log,
    ):
        address = f"unix:{folder}/worker.sock"
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        worker = subprocess.Popen(
            ["sh", "-c", enter, "sh", sys.executable, "-m", "orca_worker", "--listen", address],
            env={**environment, **setting}, stderr=log, text=True,
        )  # fmt: skip
        master = subprocess.Popen(
            [sys.executable, "-m", "orca_master.cli", "master", "--pipeline", address, "--model", str(model.resolve()),
             "--port", "0"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with ended(worker), ended(master), ThreadPoolExecutor(clients) as pool:
            url = url_when_ready(master)
            list(pool.map(generate, [url] * clients, range(clients)))  # warm-up
            before, begin = statistic(group), time.perf_counter()
            tokens = sum(pool.map(generate, [url] * 4 * clients, range(4 * clients)))
            seconds, after = time.perf_counter() - begin, statistic(group)
        (thread_line,) = set(THREADS.findall(Path(folder, "log").read_text()))
    return thread_line, tokens / seconds, after[0] - before[0], after[1] - before[1]


def main() -> None:
    """Print a line per run, with alternating settings, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=Path("examples/demo-model"))
    parser.add_argument("--quota", type=float, default=1.0, help="CPUs (1.0)")
    parser.add_argument("--clients", type=int, default=8, help="concurrent requests (8)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # unwinds the stack, to end all processes
    try:
        with limited_group(arguments.quota):
            pass
    except OSError as error:
        parser.error(f"{error}: a control group with a CPU quota needs root and a writable {CGROUPS}")
    print(line(circumstances(None)))
    results: dict[int | None, list[tuple[float, float]]] = {None: [], len(os.sched_getaffinity(0)): []}
    for _ in range(arguments.rounds):
        for threads, runs in results.items():
            thread_line, speed, periods, throttled = measure(
                arguments.model, arguments.quota, threads, arguments.clients
            )
            print(f"{thread_line}: {speed:.0f} tokens/s, {throttled} of {periods} periods throttled", flush=True)
            runs.append((speed, throttled / max(1, periods)))
    for threads, runs in results.items():
        name = "threads by quota" if threads is None else f"{threads} threads"
        speed, throttled = map(statistics.median, zip(*runs, strict=True))
        print(f"{name}: {speed:.0f} tokens/s, {throttled:.0%} of the periods throttled")


if __name__ == "__main__":
    main()
