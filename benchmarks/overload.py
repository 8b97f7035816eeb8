"""Measures an overload of `orca serve`: waits of the accepted requests, and what the refused ones are told.

    python benchmarks/overload.py [MODEL] [--seconds 300] [--factor 3] [--bound SECONDS | --times-p99 2] [--seed 0]
        [-- -pp 2]

1. Capacity: the requests per second that end while twice as many clients as a batch has places ask one after another.
2. A load of 90 % of it, with random arrivals: the p99 of the time to the first token (TTFT), for `--before` seconds.
3. A new server with `--max-expected-wait` (60 s, `--bound`, or `--times-p99` times that p99): `--settle` seconds with
   the load of 90 %, in which the workers start their spare processes, then `--factor` times the capacity for
   `--seconds`: the p99 TTFT of the accepted requests, its ratio to bound + p99 at 90 %, the refusals,
   the time to a refusal, and Retry-After beside the truth.

The truth at a refusal is the time until the last request that was accepted before has its first token, in whole
seconds, rounded up, at least 1, as Retry-After is. Prompts have 10 to 100 tokens and answers 20 to 120. Clients, master
and workers share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from orca_bench.circumstances import circumstances, line
from orca_bench.random_load import Asked, arrivals, ask, capacity, checked, clients
from orca_bench.servers import DEMO, serve, split, unwind_on_sigterm
from orca_master.garbage import NEVER

SHARE = 0.9


async def at_rate(url: str, rate: float, seconds: float, seed: int) -> list[Asked]:
    """Send `rate` requests per second with random arrivals for `seconds`; return all answers, raise RuntimeError."""
    drawn = random.Random(seed)
    async with clients(url) as session:
        asking = [asyncio.create_task(ask(session, drawn)) async for _ in arrivals(rate, seconds, drawn)]
        return [checked(asked) for asked in await asyncio.gather(*asking)]


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
        if last is not None and last.tokens[0] > refusal.sent:
            ratios.append(refusal.retry_after / math.ceil(last.tokens[0] - refusal.sent))
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
        most = asyncio.run(capacity(url, settings.seed))
        before = asyncio.run(at_rate(url, SHARE * most, settings.before, settings.seed))
        p99 = quantile([entry.wait for entry in before if not entry.retry_after], 0.99)
    print(f"capacity {most:.1f} requests/s; at 90 %: {len(before)} requests, TTFT p99 {p99:.2f} s", flush=True)
    bound = settings.bound if settings.times_p99 is None else settings.times_p99 * p99
    with serve(settings.model, [*options, "--max-expected-wait", f"{bound:.3f}"]) as (_, url):
        asyncio.run(at_rate(url, SHARE * most, settings.settle, settings.seed))
        asked = asyncio.run(at_rate(url, settings.factor * most, settings.seconds, settings.seed))
    report(asked, bound, p99)


def main() -> None:
    """Print the figures."""
    arguments, options = split(sys.argv[1:], [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--seconds", type=float, default=300.0, help="duration of the overload (300)")
    parser.add_argument("--before", type=float, default=60.0, help="duration of the load of 90 %% (60)")
    parser.add_argument("--settle", type=float, default=20.0, help="duration of that load on the new server (20)")
    parser.add_argument("--factor", type=float, default=3.0, help="overload in capacities (3)")
    bounds = parser.add_mutually_exclusive_group()
    bounds.add_argument("--bound", type=float, default=60.0, help="--max-expected-wait in seconds (60)")
    bounds.add_argument("--times-p99", type=float, help="--max-expected-wait in multiples of the p99 TTFT at 90 %%")
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args(arguments)
    unwind_on_sigterm()
    gc.set_threshold(*gc.get_threshold()[:-1], NEVER)  # the clients' own pauses are not the server's
    print(line(circumstances(settings.seed)))
    try:
        run(settings, options)
    except RuntimeError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
