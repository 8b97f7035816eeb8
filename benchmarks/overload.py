"""Measures an overload of `orca serve`: waits of the accepted requests, and what the refused ones are told.

    python benchmarks/overload.py [MODEL] [--seconds 300] [--factor 3] [--bound SECONDS | --times-p99 2] [--seed 0]
        [-- -pp 2]

1. Capacity: the requests per second that end while twice as many clients as a batch has places ask one after another.
2. A load of 90 % of it, with random arrivals: the p99 of the time to the first token (TTFT), for `--before` seconds.
3. A fresh server with `--max-expected-wait` (60 s, `--bound`, or `--times-p99` times that p99), and `--factor` times
   the capacity for `--seconds`: the p99 TTFT of the accepted requests, its ratio to bound + p99 at 90 %, the refusals,
   the time to a refusal, and Retry-After beside the truth.

The truth at a refusal is the time until the last request that was accepted before has its first token, in whole
seconds, rounded up, at least 1, as Retry-After is. Prompts have 10 to 100 tokens and answers 20 to 120. Clients, master
and workers share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from orca_bench.circumstances import circumstances, line
from orca_bench.servers import serve, unwind_on_sigterm
from recovery import DEMO, split

REQUEST_SECONDS = 600.0
"""Timeout of a request."""
PROMPT, ANSWER = (10, 100), (20, 120)
SHARE = 0.9
CAPACITY_SECONDS = 20.0
"""The first half warms up."""
CLIENTS = 64
"""Twice the default of --max-batch-size."""


@dataclass(slots=True)
class Asked:
    """One request. Times in seconds of the monotonic clock; `first`: of its first token; `ended`: of its last byte.

    `retry_after`: seconds, 0 for an accepted request.
    """

    sent: float
    first: float = 0.0
    ended: float = 0.0
    retry_after: int = 0

    @property
    def wait(self) -> float:
        """Time to the first token."""
        return self.first - self.sent


async def ask(session: aiohttp.ClientSession, drawn: random.Random) -> Asked:
    """Ask for one completion and read it to its end; raise RuntimeError for any answer but 200 and 429."""
    body = {"prompt": [drawn.randrange(1, 100) for _ in range(drawn.randint(*PROMPT))], "ignore_eos": True,
            "max_tokens": drawn.randint(*ANSWER), "stream": True, "temperature": 0}  # fmt: skip
    asked = Asked(time.monotonic())
    async with session.post("/v1/completions", json=body) as answer:
        async for text in answer.content:
            if not asked.first and text.startswith(b"data: "):
                asked.first = time.monotonic()
            if text.startswith(b'data: {"error"'):
                raise RuntimeError(f"a stream ended with {text.decode().strip()}")
        if answer.status == 429:
            asked.retry_after = int(answer.headers["Retry-After"])
        elif answer.status != 200:
            raise RuntimeError(f"HTTP {answer.status}")
    asked.ended = time.monotonic()
    return asked


async def with_clients(url: str, load: Callable[[aiohttp.ClientSession], Awaitable[list[Asked]]]) -> list[Asked]:
    """Run a load on a server."""
    limits = aiohttp.TCPConnector(limit=0)
    bound = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    async with aiohttp.ClientSession(url, connector=limits, timeout=bound) as session:
        return await load(session)


def capacity(url: str, seed: int) -> float:
    """Return the requests per second of CLIENTS clients that ask one after another."""
    drawn = random.Random(seed)

    async def load(session: aiohttp.ClientSession) -> list[Asked]:
        end = time.monotonic() + CAPACITY_SECONDS

        async def client() -> list[Asked]:
            asked = []
            while time.monotonic() < end:
                asked.append(await ask(session, drawn))
            return asked

        return [entry for entries in await asyncio.gather(*(client() for _ in range(CLIENTS))) for entry in entries]

    asked = asyncio.run(with_clients(url, load))
    begin = min(entry.sent for entry in asked)
    counted = [entry for entry in asked if CAPACITY_SECONDS / 2 <= entry.ended - begin < CAPACITY_SECONDS]
    return len(counted) / (CAPACITY_SECONDS / 2)


def at_rate(url: str, rate: float, seconds: float, seed: int) -> list[Asked]:
    """Send `rate` requests per second with random arrivals for `seconds`, and wait for all answers."""
    drawn = random.Random(seed)

    async def load(session: aiohttp.ClientSession) -> list[Asked]:
        begin, offset = time.monotonic(), 0.0
        asking = []
        while (offset := offset + drawn.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, begin + offset - time.monotonic()))
            asking.append(asyncio.create_task(ask(session, drawn)))
        return list(await asyncio.gather(*asking))

    return asyncio.run(with_clients(url, load))


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return a quantile of values, nan without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else math.nan


def told_and_true(asked: Sequence[Asked]) -> list[float]:
    """Return Retry-After / truth of each refusal for which an accepted request waited."""
    accepted = sorted((entry for entry in asked if not entry.retry_after), key=lambda entry: entry.sent)
    ratios = []
    for refusal in (entry for entry in asked if entry.retry_after):
        last = next((entry for entry in reversed(accepted) if entry.sent <= refusal.sent), None)
        if last is not None and last.first > refusal.sent:
            ratios.append(refusal.retry_after / math.ceil(last.first - refusal.sent))
    return ratios


def report(asked: Sequence[Asked], bound: float, p99: float) -> None:
    """Print the figures of an overload."""
    waits = [entry.wait for entry in asked if not entry.retry_after]
    refusals = [entry.ended - entry.sent for entry in asked if entry.retry_after]
    ratios = told_and_true(asked)
    reached = quantile(waits, 0.99)
    print(
        f"accepted {len(waits)}: TTFT p50 {quantile(waits, 0.5):.2f} s, p99 {reached:.2f} s, "
        f"maximum {quantile(waits, 1.0):.2f} s; "
        f"bound {bound:.3g} s; p99 / (bound + p99 at 90 %) {reached / (bound + p99):.2f}, "
        f"p99 / p99 at 90 % {reached / p99:.2f}"
    )
    print(
        f"refused {len(refusals)}: answered after {quantile(refusals, 0.5) * 1000:.0f} ms (median), "
        f"{quantile(refusals, 0.99) * 1000:.0f} ms (p99)"
    )
    print(
        f"Retry-After / truth of {len(ratios)} refusals: median {quantile(ratios, 0.5):.2f}, "
        f"p1 {quantile(ratios, 0.01):.2f}, p99 {quantile(ratios, 0.99):.2f}; "
        f"within a factor of 2: {sum(0.5 <= ratio <= 2 for ratio in ratios)}"
    )


def run(settings: argparse.Namespace, options: Sequence[str]) -> None:
    """Measure the three loads and print the figures; raise RuntimeError for an unexpected answer."""
    with serve(settings.model, options) as (_, url):
        most = capacity(url, settings.seed)
        before = at_rate(url, SHARE * most, settings.before, settings.seed)
        p99 = quantile([entry.wait for entry in before if not entry.retry_after], 0.99)
    print(f"capacity {most:.1f} requests/s; at 90 %: {len(before)} requests, TTFT p99 {p99:.2f} s", flush=True)
    bound = settings.bound if settings.times_p99 is None else settings.times_p99 * p99
    with serve(settings.model, [*options, "--max-expected-wait", f"{bound:.3f}"]) as (_, url):
        report(at_rate(url, settings.factor * most, settings.seconds, settings.seed), bound, p99)


def main() -> None:
    """Print the figures."""
    arguments, options = split(sys.argv[1:]) if "--" in sys.argv else (sys.argv[1:], [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--seconds", type=float, default=300.0, help="duration of the overload (300)")
    parser.add_argument("--before", type=float, default=60.0, help="duration of the load of 90 %% (60)")
    parser.add_argument("--factor", type=float, default=3.0, help="overload in capacities (3)")
    bounds = parser.add_mutually_exclusive_group()
    bounds.add_argument("--bound", type=float, default=60.0, help="--max-expected-wait in seconds (60)")
    bounds.add_argument("--times-p99", type=float, help="--max-expected-wait in multiples of the p99 TTFT at 90 %%")
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args(arguments)
    unwind_on_sigterm()
    print(line(circumstances(settings.seed)))
    try:
        run(settings, options)
    except RuntimeError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
