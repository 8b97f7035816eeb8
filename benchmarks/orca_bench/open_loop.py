"""Open-loop load: requests are sent at the times of the trace, whether or not the server keeps up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from orca_bench.client import Outcome, ask, body_of
from orca_bench.report import report
from orca_bench.traces import TracedRequest

LEAD_SECONDS = 0.1
"""Delay before the first request."""


async def run(
    requests: Sequence[TracedRequest],
    url: str,
    model: str,
    on_end: Callable[[Outcome], object],
    max_concurrency: int | None = None,
    timeout: float = 600.0,
    headers: dict[str, str] | None = None,
) -> list[Outcome]:
    """Send each request at its time and wait for all, at most `timeout` seconds for each.

    `max_concurrency` closes the loop: a due request waits until another request has ended, which adds to its lag.
    """
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else None
    limits = aiohttp.TCPConnector(limit=0)
    bound = aiohttp.ClientTimeout(total=timeout)
    async with aiohttp.ClientSession(connector=limits, timeout=bound, headers=headers) as session:
        begin = time.perf_counter() + LEAD_SECONDS

        async def one(request: TracedRequest) -> Outcome:
            outcome = Outcome(request, planned=begin + request.arrival)
            await asyncio.sleep(outcome.planned - time.perf_counter())
            if gate is None:
                await ask(session, url, body_of(request, model), outcome)
            else:
                async with gate:
                    await ask(session, url, body_of(request, model), outcome)
            on_end(outcome)
            return outcome

        return list(await asyncio.gather(*(one(request) for request in requests)))


def measure(name: str, url: str, model: str, trace: Sequence[TracedRequest]) -> dict[str, Any]:
    """Send a trace to the server at `url` and return the figures of the report.

    Raises RuntimeError, with `name` of the server, if a request fails: figures are compared for equal work only.
    """
    outcomes = asyncio.run(run(trace, f"{url}/v1/completions", model, lambda _: None))
    figures = report(outcomes, {})
    if figures["failed"]:
        first = figures["first_errors"][0]
        raise RuntimeError(f"{name}: {figures['failed']} of {len(outcomes)} requests failed: {first}")
    return figures
