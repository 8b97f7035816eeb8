"""Makes faults of every kind under a server with streaming clients, and compares every stream with the undisturbed one.

    PYTHONPATH=tests python -m chaos.campaign [--repetitions 10] [--streams 30] [--seed N]

`orca serve` runs the demo model with 3 partitions of 2 ranks, in float32, with `--deterministic on` and a journal.
Each fault is made while at least ten streams are under way, half of them while the engine recovers from another.
Then every stream must have gone on. Exit code 1 if a stream failed or differs, a connection was lost or a request was
refused while the master lived, a survivor was replaced, fewer than half of the faults met a recovery, or K/V slots are
held at the end. The table has, for every kind, alone and with other faults during its recovery: the time until the log
shows that the first fault was noticed, the longest pause of a stream (median and 95th percentile over the streams), the
streams under way and those of them that lost their connection, and the controllers and ranks that kept their process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import math
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx
from support.served import Served, eventually, serve, value

from chaos.faults import FULL_DISK, KILLED_MASTER, Fault, combined, everywhere, limit_files
from chaos.processes import Processes, memory_bytes, processes, running
from chaos.streams import Streams, Tally
from chaos.table import Row, table

Value = TypeVar("Value")
DEMO = Path(__file__).parents[2] / "examples" / "demo-model"
NOTICED = re.compile(
    r"is lost: |was not formed: |is restarted|no sign of life|the journal is off|the master .*(ended|killed)"
)
"""Lines of the log after a fault."""
STAMP = re.compile(r"^(\S+ \S+),(\d{3}) ")
LEAST_STREAMS = 10
"""A fault is made while so many streams are under way."""
SILENCE_SECONDS = 15.0
"""Bound of the time without a line on a stream, which has a comment every 5 s; generous, for a busy machine."""
STEP_SECONDS = 180.0
"""Bound of every wait."""
POLL_SECONDS = 0.01
FOLLOWER_SECONDS = 0.3
"""Longest wait from the notice of a fault to its first follower, and from there to the second."""
MEMORY_SECONDS = 2.0
"""Between two measurements of the memory, also during recoveries."""


class Campaign:
    """One server, its clients, and the faults."""

    def __init__(self, served: Served, partitions: int, ranks: int) -> None:
        self.rows: dict[str, Row] = {}
        self.tally = Tally()
        self.in_recovery = 0
        """Faults that were made while the engine recovered."""
        self.number = 0
        """Faults so far."""
        self._restarts: list[tuple[float, float]] = []
        """Of the master: the time of its end, and a time after the recovery."""
        self._peak_bytes = 0
        self._served = served
        self._partitions, self._ranks = partitions, ranks

    async def run(self, faults: list[Fault], num_streams: int, max_tokens: int, rng: random.Random) -> None:
        """Make the faults one after the other under `num_streams` streams, and let the streams end."""
        self._streams = Streams(self._served.url, num_streams, rng, max_tokens)
        self._least = min(LEAST_STREAMS, num_streams * 2 // 3)
        self.tally = self._streams.tally
        await self._streams.record()
        self._streams.begin()
        measuring = asyncio.create_task(self._measure_memory())
        for number, fault in enumerate(faults, 1):
            print(f"{number} of {len(faults)}: {fault}", flush=True)
            await self._make(fault, rng)
        await self._streams.end()
        measuring.cancel()

    def failures(self) -> list[str]:
        """Return what must not be.

        Streams that differ, a connection that was lost or a request that was refused although the master lived, a
        stream without comments, survivors that were replaced, or K/V slots that are held at the end.
        """
        tally = self.tally
        failures = [f"{name} differs" for name in tally.differing]
        if lost := self._while_the_master_lived(tally.losses):
            failures.append(f"{lost} connections were lost while the master lived")
        if refused := self._while_the_master_lived(tally.refusals):
            failures.append(f"{refused} requests were refused while the master lived")
        if tally.silence > SILENCE_SECONDS:
            failures.append(f"a stream was silent for {tally.silence:.1f} s")
        if replaced := sum(row.survivors - row.kept for row in self.rows.values()):
            failures.append(f"{replaced} survivors were replaced")
        if not eventually(lambda: self._held() == {}):
            failures.append(f"at the end: {self._held()}")
        return failures

    def _while_the_master_lived(self, times: list[float]) -> int:
        return sum(not any(end <= at <= recovered for end, recovered in self._restarts) for at in times)

    def _held(self) -> dict[str, float]:
        metrics = httpx.get(f"{self._served.url}/metrics").text
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return {name: left for name in names if (left := value(metrics, name))}

    def report(self) -> list[str]:
        """Return the table of the kinds, times in seconds, and a line about faults and streams."""
        tally = self.tally
        return [
            *table(self.rows),
            f"{self.number} faults, {self.in_recovery} while the engine recovered; peak memory "
            f"{self._peak_bytes / 2**20:.0f} MiB; streams: {tally.undisturbed} without a lost connection, "
            f"{tally.resumed} resumed, {len(tally.differing)} differ, longest silence {tally.silence:.1f} s; "
            f"{len(tally.refusals)} requests refused, {self._while_the_master_lived(tally.refusals)} of them while the "
            "master lived",
        ]

    async def _make(self, fault: Fault, rng: random.Random) -> None:
        target = await self._settled()
        streams = self._streams.under_way(0)
        if fault.kind is FULL_DISK:
            self._streams.pause()  # a request that begins without a journal has events without ids
            await self._until(lambda: all(self._streams.num_events))
        since, wall, line = time.monotonic(), time.time(), len(self._served.log)
        restarts = len(self._restarts)
        ended = self._begin(fault, target, rng)
        noticed = await self._until(lambda: self._noticed(line))
        for follower in fault.followers:
            await asyncio.sleep(rng.uniform(0, FOLLOWER_SECONDS))
            ended |= await self._make_follower(follower, rng)
        if fault.kind is FULL_DISK:
            await self._replace_journal(target)
        after = await self._settled()
        now = time.monotonic()
        self._restarts[restarts:] = [(end, now) for end, _ in self._restarts[restarts:]]
        row = self.rows.setdefault(
            f"{fault.kind.name}, others in the recovery" if fault.followers else fault.kind.name, Row()
        )
        row.number += 1
        row.noticed.append(max(0.0, noticed - wall))
        row.pauses += [entry.pause(since, now) for entry in streams]
        row.resumed += sum(any(since <= at <= now for at in entry.losses) for entry in streams)
        survivors = target.workers - ended
        row.survivors += len(survivors)
        row.kept += len(survivors & after.workers)

    async def _make_follower(self, fault: Fault, rng: random.Random) -> set[int]:
        """Make a fault as soon as its process runs and is connected, and enough streams are under way.

        Count the fault if the engine recovers.
        """
        deadline = time.monotonic() + STEP_SECONDS
        while True:
            serves = await asyncio.to_thread(self._serves)
            try:
                if len(self._streams.under_way(0)) < self._least:
                    raise ProcessLookupError("too few streams are under way")
                ended = self._begin(fault, self._processes(), rng)
            except (ProcessLookupError, FileNotFoundError, PermissionError):  # a zombie's files are not ours
                if time.monotonic() > deadline:
                    raise
                self._streams.check()
                await asyncio.sleep(POLL_SECONDS)
                continue
            self.in_recovery += not serves
            return ended

    def _begin(self, fault: Fault, target: Processes, rng: random.Random) -> set[int]:
        ended = fault.kind.make(target, fault.place, rng)
        self.number += 1
        if fault.kind is KILLED_MASTER:
            self._restarts.append((time.monotonic(), math.inf))
        return ended

    async def _replace_journal(self, target: Processes) -> None:
        """Free the disk, and restart the master when all streams have ended: only then it has a journal again."""
        await self._until(lambda: self._streams.num_open == 0)
        limit_files(running(target.master), resource.RLIM_INFINITY)
        KILLED_MASTER.make(target, 0, random.Random())
        self._restarts.append((time.monotonic(), math.inf))
        await self._until(lambda: self._complete() and self._processes().master != target.master)
        self._streams.resume()

    async def _measure_memory(self) -> None:
        while True:
            now = await asyncio.to_thread(memory_bytes, self._served.process.pid)
            self._peak_bytes = max(self._peak_bytes, now)
            await asyncio.sleep(MEMORY_SECONDS)

    async def _settled(self) -> Processes:
        """Wait until the engine serves with all its processes, and enough streams have had an event since now."""
        await self._until(lambda: self._complete() and self._serves(), threaded=True)
        since = time.monotonic()
        await self._until(lambda: len(self._streams.under_way(since)) >= self._least)
        await self._until(self._complete)
        return self._processes()

    def _processes(self) -> Processes:
        return processes(self._served.process.pid, self._ranks)

    def _complete(self) -> bool:
        return self._processes().complete(self._partitions, self._ranks)

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
        failures = campaign.failures()
        if 2 * campaign.in_recovery < campaign.number:
            failures.append(f"{campaign.in_recovery} of {campaign.number} faults met a recovery, not half of them")
        if failures:
            sys.exit(f"error: {'; '.join(failures)}")


if __name__ == "__main__":
    main()
