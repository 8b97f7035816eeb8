"""Soak of `orca serve`: an hour of load with cancelled requests and killed workers; what grows meanwhile.

    python benchmarks/soak.py [MODEL] [--seconds 3600] [--share 0.8] [--crash-every 60] [--cancel 0.1] [--seed 0]
        [--csv FILE] [--plot FILE] [-- -pp 2 --journal DIR]

1. Capacity: the requests per second that end while twice as many clients as a batch has places ask one after another.
2. A load of `--share` of it for `--seconds`, with random arrivals; a client cancels a request (closes its connection)
   with the probability `--cancel`, after a random number of tokens. Every `--crash-every` seconds a rank or a
   controller is killed (SIGKILL), each in turn. The master lives for the whole run, because its memory is observed.
3. Every 5 s a sample of the resources of all processes, by role (`orca_bench/resources.py`), of the queue and of the
   files; every minute the latencies of the requests that ended in it, at the middle of the minute, and the CPU time of
   each role divided by their number. The time of a fixed computation shows how much of a change is the machine's.
4. After the load: running and waiting requests, K/V slots, processes and descriptors must be back at the values before
   it, and after the end of the server no process and no temporary file may be left.

The table has, for each series, the medians of its first and last quarter and its slope per hour, also that of the
second half, because memory grows until the first requests leave the journal (`--resume-window`). The journal lies in a
temporary folder unless `--journal` is given. Files in /dev/shm are those of all programs. Exit code 1 if a request that
was not cancelled did not complete, or if something is left. Clients, master and workers share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import aiohttp
from orca_bench.circumstances import circumstances, line
from orca_bench.cpu_times import CpuTimes, fixed_computation
from orca_bench.latency import Interval
from orca_bench.options import fraction, rate
from orca_bench.plot import Panel, plot_panels
from orca_bench.processes import processes, spares, with_variable, workers
from orca_bench.random_load import arrivals, ask, capacity, clients
from orca_bench.resources import RUNNING, WAITING, at_rest, files, gauges, grown, held, temporary_files
from orca_bench.servers import DEMO, given, ranks_per_worker, serve, split, unwind_on_sigterm
from orca_bench.time_series import TimeSeries, last_before, medians

SAMPLE_SECONDS = 5.0
INTERVAL_SECONDS = 60.0
FIXED = "fixed computation (ms)"
REST_SECONDS = 120.0
"""Bound of the time until an idle server holds nothing and has all its processes."""
MOST_ERRORS = 5
"""Errors that are printed."""


class Soak:
    """One server under observation: its series, its crashes and the failures so far."""

    def __init__(
        self, server: subprocess.Popen[str], url: str, options: Sequence[str], temporary: Path, journal: Path
    ) -> None:
        self.series = TimeSeries()
        self.crashes: list[float] = []
        """Times in seconds after the start of the load."""
        self.failures: list[str] = []
        self._server, self._url, self._ranks = server, url, ranks_per_worker(options)
        self._folders = (temporary, journal)
        self._workers = workers(self._processes())
        self._spares = spares(self._workers) if "--no-spare-ranks" not in options else set[str]()
        self.total = Interval()
        """Of the whole run."""
        self._interval = Interval()
        self._cpu_times = CpuTimes()
        self._errors: list[str] = []
        self._begin = 0.0

    async def run(self, per_second: float, settings: argparse.Namespace) -> None:
        """Load the server with `per_second` requests, and kill its workers; end early if the server ends."""
        drawn = random.Random(settings.seed)
        before = await self._rest({})
        self._begin = time.monotonic()
        self._spent()
        async with clients(self._url) as session, asyncio.TaskGroup() as group:
            observing = [
                group.create_task(self._sample(session)),
                group.create_task(self._summarize(settings.seconds)),
                group.create_task(self._kill(settings.crash_every, settings.seconds)),
            ]
            asking = set[asyncio.Task[None]]()
            async for _ in arrivals(per_second, settings.seconds, drawn):
                if self._server.poll() is not None:
                    break
                asking.add(task := group.create_task(self._ask(session, drawn, settings.cancel)))
                task.add_done_callback(asking.discard)
            await asyncio.gather(*asking)
            for task in observing:
                task.cancel()
        self._end_interval()
        if self._server.poll() is None:
            after = await self._rest(before)
            compared = [f"{name} {before[name]:g}, {after.get(name, 0.0):g}" for name in at_rest(before)]
            print(f"before and after the load: {'; '.join(compared)}")
            left = [f"{name} {after[name]:g}, before the load {value:g}" for name, value in grown(before, after)]
            self.failures += left
        else:
            self.failures.append(f"the server has ended with exit code {self._server.returncode}")
        if number := self.total.refused + self.total.failed:
            self.failures.append(f"{number} requests were refused or failed: {'; '.join(self._errors) or 'HTTP 429'}")

    async def _ask(self, session: aiohttp.ClientSession, drawn: random.Random, cancelled: float) -> None:
        asked = await ask(session, drawn, cancelled)
        self._interval.add(asked)
        self.total.add(asked)
        if asked.error and len(self._errors) < MOST_ERRORS:
            self._errors.append(asked.error)

    async def _sample(self, session: aiohttp.ClientSession) -> None:
        while True:
            try:
                self.series.add(self._now, await self._observed(session))
            except (aiohttp.ClientError, OSError) as error:
                self.failures.append(f"no sample after {self._now:.0f} s: {error!r}")
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _summarize(self, seconds: float) -> None:
        """End every interval but the last, which lasts until the last request has ended."""
        for number in itertools.count(1):
            if (number + 1) * INTERVAL_SECONDS > seconds:
                return
            await asyncio.sleep(self._begin + number * INTERVAL_SECONDS - time.monotonic())
            self._end_interval()

    def _end_interval(self) -> None:
        interval, self._interval = self._interval, Interval()
        middle = max(0.0, self._now - INTERVAL_SECONDS / 2)
        self.series.add(middle, interval.figures())
        spent = self._spent()
        if ended := interval.completed + interval.cancelled:
            costs = {f"CPU time per request, {role} (ms)": 1000 * seconds / ended for role, seconds in spent.items()}
            self.series.add(middle, costs)
        waiting = self.series.points.get(WAITING, [(0.0, 0.0)])[-1][1]
        print(f"{self._now / 60:.1f} min: {interval}; waiting {waiting:.0f}", flush=True)

    def _spent(self) -> dict[str, float]:
        """Return the CPU seconds of each role, the client included, since the last call."""
        return self._cpu_times.since_last(self._processes() | {"client": os.getpid()})

    async def _kill(self, every: float, seconds: float) -> None:
        """Kill the workers' processes in turn; one that is not running is waited for."""
        for number, name in enumerate(itertools.cycle(self._workers), 1):
            if (number + 0.5) * every > seconds:
                return  # a crash just before the end would leave no time to observe its consequences
            await asyncio.sleep(self._begin + number * every - time.monotonic())
            while (pid := self._processes().get(name)) is None:
                await asyncio.sleep(0.1)
            self.crashes.append(self._now)
            with contextlib.suppress(ProcessLookupError):  # it has ended of itself
                os.kill(pid, signal.SIGKILL)

    @property
    def _now(self) -> float:
        """Seconds after the start of the load."""
        return time.monotonic() - self._begin

    def _processes(self) -> dict[str, int]:
        return processes(self._server.pid, self._ranks)

    async def _observed(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Return a sample of all that the server holds."""
        resources = await asyncio.to_thread(lambda: {**held(self._processes()), **files(*self._folders)})
        async with session.get("/metrics") as answer:
            return {**gauges(await answer.text()), **resources, FIXED: fixed_computation()}

    async def _rest(self, least: dict[str, float]) -> dict[str, float]:
        """Wait until the server holds no requests, and no more descriptors than in `least`; return the last sample."""
        expected = {*self._workers, *self._spares}
        deadline = time.monotonic() + REST_SECONDS
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            async with clients(self._url) as session:
                sample = await self._observed(session)
            complete = self._processes().keys() >= expected
            if time.monotonic() > deadline or (complete and not any(grown(least, sample))):
                return sample


def report(soak: Soak) -> None:
    """Print the figures of the whole run."""
    points = soak.series.points
    print(*soak.series.drifts(), sep="\n")
    print(f"{soak.total}; {len(soak.crashes)} crashes")
    if backlog := last_before(points.get(WAITING, []), soak.crashes):
        print(f"waiting just before a crash: {statistics.median(backlog):g} (median), {max(backlog):g} (maximum)")


def panels(series: TimeSeries) -> list[Panel]:
    """Return the panels of the plot: medians of each minute."""

    def minutes(names: Iterable[str]) -> dict[str, list[tuple[float, float]]]:
        """Return the lines by the part of the name that is not in the panel's title."""
        found = {}
        for name in names:
            points = medians(series.points.get(name, []), INTERVAL_SECONDS)
            label = name.rpartition(", ")[2].removesuffix(" (MiB)").removesuffix(" (ms)")
            found[label] = [(seconds / 60, value) for seconds, value in points]
        return {label: points for label, points in found.items() if points}

    def roles(resource: str) -> dict[str, list[tuple[float, float]]]:
        return minutes(name for name in series.points if name.startswith(resource) and "client" not in name)

    latencies = (name for name in series.points if name.endswith(("p50 (ms)", "p99 (ms)")))
    return [
        Panel("private memory (MiB), sum of each role", roles("private memory"), "log"),
        Panel("open descriptors, sum of each role", roles("descriptors")),
        Panel("threads, sum of each role", roles("threads")),
        Panel("requests at the server", minutes((RUNNING, WAITING))),
        Panel("CPU time per request (ms), and of a fixed computation", roles("CPU time") | minutes((FIXED,))),
        Panel("latency (ms)", minutes(latencies), "log"),
        Panel("processes, files, journal (MiB)", minutes(("processes", "temporary files", "journal (MiB)"))),
    ]


def _title(settings: argparse.Namespace) -> str:
    return f"orca serve, {100 * settings.share:g} % of the capacity, a crash every {settings.crash_every:g} s"


def run(settings: argparse.Namespace, options: Sequence[str]) -> list[str]:
    """Run the soak and print its figures; return what must not be.

    Raises RuntimeError or aiohttp.ClientError if the server fails before the load or after it.
    """
    with tempfile.TemporaryDirectory(prefix="orca-soak-") as folder:
        temporary = Path(folder)
        journal = Path(given(options, "--journal") or temporary / "journal")
        options = [*options, "--journal", str(journal)]
        with serve(settings.model, options, {"TMPDIR": folder}) as (server, url):
            most = asyncio.run(capacity(url, settings.seed))
            print(f"capacity {most:.1f} requests/s; load {settings.share * most:.1f} requests/s", flush=True)
            soak = Soak(server, url, options, temporary, journal)
            try:
                asyncio.run(soak.run(settings.share * most, settings))
            finally:  # also the figures of an interrupted run
                report(soak)
                if settings.csv is not None:
                    soak.series.write_csv(settings.csv)
                if settings.plot is not None:
                    plot_panels(panels(soak.series), _title(settings), settings.plot)
        left = [*temporary_files(temporary, journal), *(f"process {pid}" for pid in with_variable("TMPDIR", folder))]
        return [*soak.failures, *(f"left after the end: {name}" for name in left)]


def main() -> None:
    """Print the figures."""
    arguments, options = split(sys.argv[1:], ("-pp", "2"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--seconds", type=rate, default=3600.0, help="duration of the load (3600)")
    parser.add_argument("--share", type=rate, default=0.8, help="load as a fraction of the capacity (0.8)")
    parser.add_argument("--crash-every", type=rate, default=60.0, help="seconds between two crashes, inf: none (60)")
    parser.add_argument(
        "--cancel", type=fraction, default=0.1, help="fraction of the requests that are cancelled (0.1)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all series to this file (none)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot to this file, .svg or .png (none)")
    settings = parser.parse_args(arguments)
    unwind_on_sigterm()
    print(line(circumstances(settings.seed)), flush=True)
    try:
        failures = run(settings, options)
    except (RuntimeError, aiohttp.ClientError) as error:
        raise SystemExit(f"error: {error}") from error
    if failures:
        raise SystemExit(f"error: {'; '.join(failures)}")


if __name__ == "__main__":
    main()
