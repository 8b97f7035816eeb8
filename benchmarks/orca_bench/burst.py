"""`tokens_per_second`: the rate of completions that are requested at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
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
