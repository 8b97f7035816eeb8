"""The rate of completions that are requested at once, and the rates of servers that take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx


async def tokens_per_second(url: str, bodies: Sequence[Mapping[str, Any]]) -> float:
    """Return the generated tokens per second of completions, each of which has all of its `max_tokens`."""
    async with httpx.AsyncClient(timeout=600) as client:
        begin = time.perf_counter()
        posts = (client.post(f"{url}/v1/completions", json={**body, "ignore_eos": True}) for body in bodies)
        for answer in await asyncio.gather(*posts):
            answer.raise_for_status()
        count: int = sum(body["max_tokens"] for body in bodies)
        return count / (time.perf_counter() - begin)


def alternate(
    bodies: Mapping[str, Callable[[int], Sequence[Mapping[str, Any]]]], rounds: int
) -> dict[str, list[float]]:
    """Return the tokens per second of each URL in each round, in which the URLs take turns.

    `bodies`: by URL, a function from the number of a round to its requests. Round 0 warms up and is not returned. Odd
    rounds begin with the last URL.
    """
    rates: dict[str, list[float]] = {url: [] for url in bodies}
    for number in range(rounds + 1):
        for url in reversed(list(bodies)) if number % 2 else bodies:
            rate = asyncio.run(tokens_per_second(url, bodies[url](number)))
            rates[url] += [rate] if number else []
    return rates
