"""Makes faults of every kind under a server with streaming clients, and compares every stream with the undisturbed one.

    PYTHONPATH=tests python -m chaos.campaign [--repetitions 10] [--streams 30] [--seed N]

`orca serve` runs the demo model with 3 partitions of 2 ranks, in float32, with `--deterministic on` and a journal.
Each fault is made while at least ten streams are under way, half of them while the engine recovers from another.
Then every stream must have gone on. Exit code 1 if a stream failed or differs, a survivor was replaced, or K/V slots
are held at the end. The table has, for every kind: the time until the log shows that the fault was noticed, the longest
pause of a stream (median and 95th percentile over the streams), and the survivors that kept their process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import random
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
from support.served import Served, eventually, serve, value

from chaos.faults import FULL_DISK, KILLED_MASTER, Fault, combined, everywhere, limit_files
from chaos.processes import Processes, memory_bytes, processes
from chaos.streams import Streams, Tally

Value = TypeVar("Value")
DEMO = Path(__file__).parents[2] / "examples" / "demo-model"
NOTICED = re.compile(
    r"is lost: |was not formed: |is restarted|no sign of life|the journal is off|the master .*(ended|killed)"
)
"""Lines of the log after a fault."""
STAMP = re.compile(r"^(\S+ \S+),(\d{3}) ")
LEAST_STREAMS = 10
"""A fault is made while so many streams are under way."""
RESTART_SECONDS = 60.0
"""Connections may be lost for so long after the master was killed: those that wait at the port of a killed one."""
SILENCE_SECONDS = 15.0
"""Bound of the time without a line on a stream, which has a comment every 5 s; generous, for a busy machine."""
STEP_SECONDS = 180.0
"""Bound of every wait."""
POLL_SECONDS = 0.01
FOLLOWER_SECONDS = 0.3
"""Longest wait from the notice of a fault to its first follower, and from there to the second."""


@dataclass(slots=True)
class Row:
    """Measurements of one kind. Times in seconds."""

    number: int = 0
    noticed: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    survivors: int = 0
    kept: int = 0


class Campaign:
    """One server, its clients, and the faults."""

    def __init__(self, served: Served, partitions: int, ranks: int) -> None:
        self.rows: dict[str, Row] = {}
        self.tally = Tally()
        self.in_recovery = 0
        """Faults that were made while the engine recovered."""
        self._kills: list[float] = []
        """Times when the master was killed."""
        self._peak_bytes = 0
        self._served = served
        self._shape = (partitions, ranks)

    async def run(self, faults: list[Fault], num_streams: int, max_tokens: int, rng: random.Random) -> None:
        """Make the faults one after the other under `num_streams` streams, and let the streams end."""
        self._streams = Streams(self._served.url, num_streams, rng, max_tokens)
        self._least = min(LEAST_STREAMS, num_streams * 2 // 3)
        self.tally = self._streams.tally
        await self._streams.record()
        self._streams.begin()
        for number, fault in enumerate(faults, 1):
            print(f"{number} of {len(faults)}: {fault}", flush=True)
            await self._make(fault, rng)
        await self._streams.end()

    def failures(self) -> list[str]:
        """Return what must not be.

        Streams that differ, a connection that was lost although the master lived, a stream without comments, survivors
        that were replaced, or K/V slots that are held at the end.
        """
        tally = self.tally
        failures = [f"{name} differs" for name in tally.differing]
        lost = [at for at in tally.losses if not any(kill <= at <= kill + RESTART_SECONDS for kill in self._kills)]
        if lost:
            failures.append(f"{len(lost)} connections were lost while the master lived")
        if tally.refused and not self._kills:
            failures.append(f"{tally.refused} requests were refused")
        if tally.silence > SILENCE_SECONDS:
            failures.append(f"a stream was silent for {tally.silence:.1f} s")
        if replaced := sum(row.survivors - row.kept for row in self.rows.values()):
            failures.append(f"{replaced} survivors were replaced")
        if not eventually(lambda: self._held() == {}):
            failures.append(f"at the end: {self._held()}")
        return failures

    def _held(self) -> dict[str, float]:
        metrics = httpx.get(f"{self._served.url}/metrics").text
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return {name: left for name in names if (left := value(metrics, name))}

    def report(self) -> list[str]:
        """Return the table of the kinds, times in seconds, and a line about the streams."""
        lines = [
            "| fault | number | noticed after (median, p95) | pause (median, p95) | survivors kept |",
            "|---|---|---|---|---|",
        ]
        for name, row in sorted(self.rows.items()):
            noticed, pause = (f"{statistics.median(part):.2f}, {_p95(part):.2f}" for part in (row.noticed, row.pauses))
            lines.append(f"| {name} | {row.number} | {noticed} | {pause} | {row.kept} of {row.survivors} |")
        tally = self.tally
        lines.append(
            f"{self.in_recovery} faults while the engine recovered; streams: {tally.undisturbed} without a lost "
            f"connection, {tally.resumed} resumed, {len(tally.differing)} differ, {tally.refused} answers 503, "
            f"longest silence {tally.silence:.1f} s; peak memory {self._peak_bytes / 2**20:.0f} MiB"
        )
        return lines

    async def _make(self, fault: Fault, rng: random.Random) -> None:
        target = await self._settled()
        self._peak_bytes = max(self._peak_bytes, memory_bytes(self._served.process.pid))
        streams = self._streams.under_way(0)
        if fault.kind is FULL_DISK:
            self._streams.pause()  # a request that begins without a journal has events without ids
        since, wall, line = time.monotonic(), time.time(), len(self._served.log)
        ended = self._begin(fault, target, rng)
        noticed = await self._until(lambda: self._noticed(line))
        name = fault.kind.name
        for follower in fault.followers:
            await asyncio.sleep(rng.uniform(0, FOLLOWER_SECONDS))
            ended |= await self._make_follower(follower, rng)
            name = f"{fault.kind.name}, others in the recovery"
        if fault.kind is FULL_DISK:
            await self._replace_journal(target)
        after = await self._settled()
        row = self.rows.setdefault(name, Row())
        row.number += 1 + len(fault.followers)
        row.noticed.append(max(0.0, noticed - wall))
        row.pauses += [entry.pause(since, time.monotonic()) for entry in streams]
        survivors = target.all_ranks - ended
        row.survivors += len(survivors)
        row.kept += len(survivors & after.all_ranks)

    async def _make_follower(self, fault: Fault, rng: random.Random) -> set[int]:
        """Make a fault as soon as its processes run and are connected; count it if the engine recovers."""
        deadline = time.monotonic() + STEP_SECONDS
        while True:
            target = await self._until(self._processes)
            serves = await asyncio.to_thread(self._serves)
            try:
                ended = self._begin(fault, target, rng)
            except (ProcessLookupError, FileNotFoundError, PermissionError):  # a zombie's files are not ours
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_SECONDS)
                continue
            self.in_recovery += not serves
            return ended

    def _begin(self, fault: Fault, target: Processes, rng: random.Random) -> set[int]:
        ended = fault.kind.make(target, fault.place, rng)
        if fault.kind in (KILLED_MASTER, FULL_DISK):
            self._kills.append(time.monotonic())
        return ended

    async def _replace_journal(self, target: Processes) -> None:
        """Free the disk, and restart the master when all streams have ended: only then it has a journal again."""
        await self._until(lambda: self._streams.num_open == 0)
        limit_files(target.master, resource.RLIM_INFINITY)
        self._begin(Fault(KILLED_MASTER, 0), target, random.Random())
        await self._until(lambda: (now := self._processes()) is not None and now.master != target.master)
        self._streams.resume()

    async def _settled(self) -> Processes:
        """Wait until the engine serves with all its processes, and enough streams have had an event since now."""
        await self._until(lambda: self._processes() is not None and self._serves(), threaded=True)
        since = time.monotonic()
        await self._until(lambda: len(self._streams.under_way(since)) >= self._least)
        return await self._until(self._processes)

    def _processes(self) -> Processes | None:
        return processes(self._served.process.pid, *self._shape)

    def _serves(self) -> bool:
        try:
            answer = httpx.get(f"{self._served.url}/progressz", timeout=10)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["state"] == "serving"

    def _noticed(self, line: int) -> float | None:
        """Return the time of the first line from `line` on that speaks of a fault, in seconds since 1970."""
        for text in self._served.log[line:]:
            if NOTICED.search(text):
                stamp = STAMP.match(text)
                if stamp is None:
                    return time.time()
                return datetime.datetime.fromisoformat(stamp[1]).timestamp() + int(stamp[2]) / 1000
        return None

    async def _until(self, read: Callable[[], Value | None], threaded: bool = False) -> Value:
        """Return the first value of `read` that is true."""
        deadline = time.monotonic() + STEP_SECONDS
        while time.monotonic() < deadline:
            self._streams.check()
            if found := (await asyncio.to_thread(read) if threaded else read()):
                return found
            if self._served.process.poll() is not None:
                raise SystemExit(f"error: the server has ended: {self._served.log[-3:]}")
            await asyncio.sleep(POLL_SECONDS)
        state = await asyncio.to_thread(lambda: httpx.get(f"{self._served.url}/progressz", timeout=10).text)
        raise SystemExit(
            f"error: nothing for {STEP_SECONDS:.0f} s; events of the streams under way: {self._streams.num_events}; "
            f"{state}"
        )


def _p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


@contextlib.contextmanager
def serving(partitions: int, ranks: int, *options: str) -> Iterator[Served]:
    """Yield a ready server of the demo model; its journal and its iteration log lie in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="orca-chaos-") as folder:
        shape = ("-pp", str(partitions), "-tp", str(ranks), "--dtype", "float32", "--deterministic", "on")
        logs = ("--journal", f"{folder}/journal", "--iteration-log", f"{folder}/iterations.jsonl")
        folders = (str(Path(__file__).parent / "in_ranks"), os.environ.get("PYTHONPATH", ""))
        program = ("env", f"PYTHONPATH={os.pathsep.join(filter(None, folders))}")
        with serve(DEMO, *shape, *logs, *options, "--disable-log-requests", prefix=program, spare_ranks=True) as served:
            yield served


def main() -> None:
    """Run a campaign and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10, help="faults of each kind at each place (10)")
    parser.add_argument("--streams", type=int, default=30, help="concurrent streams (30)")
    parser.add_argument("--tokens", type=int, default=600, help="tokens of a stream (600)")
    parser.add_argument("--partitions", type=int, default=3, help="inter-layer partitions (3)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of each partition (2)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the campaign (drawn)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write the server's log to this file (none)")
    parser.add_argument("--no-spare-ranks", action="store_true", help="see orca serve --help")
    settings = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if settings.seed is None else settings.seed
    rng = random.Random(seed)
    faults = combined(everywhere(settings.partitions, settings.repetitions), rng)
    print(f"seed {seed}: {sum(1 + len(fault.followers) for fault in faults)} faults", flush=True)
    options = ["--no-spare-ranks"] if settings.no_spare_ranks else []
    with serving(settings.partitions, settings.ranks, *options) as served:
        campaign = Campaign(served, settings.partitions, settings.ranks)
        try:
            asyncio.run(campaign.run(faults, settings.streams, settings.tokens, rng))
        finally:
            print(*campaign.report(), sep="\n")
            if settings.log is not None:
                settings.log.write_text("\n".join(served.log), encoding="utf-8")
        if failures := campaign.failures():
            sys.exit(f"error: {'; '.join(failures)}")


if __name__ == "__main__":
    main()
