"""A load of streamed completions of random lengths: one request, random arrivals, and a server's capacity for it.

Prompts have 10 to 100 tokens, answers 20 to 120. The clients do not parse the events, because they share the machine
with the server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp

REQUEST_SECONDS = 600.0
"""Timeout of a request."""
PROMPT, ANSWER = (10, 100), (20, 120)
CAPACITY_SECONDS = 60.0
"""The first half warms up."""
CLIENTS = 64
"""Twice the default of --max-batch-size."""


@dataclass(slots=True)
class Asked:
    """One request. Times in seconds of the monotonic clock; `tokens`: of each token; `ended`: of the last byte.

    `retry_after`: seconds, 0 for an accepted request. `error`: "" for a request that was refused with 429 and a
    Retry-After of at least 1 s, cancelled or completed.
    """

    sent: float
    tokens: list[float] = field(default_factory=list)
    ended: float = 0.0
    retry_after: int = 0
    cancelled: bool = False
    error: str = ""

    @property
    def wait(self) -> float:
        """Time to the first token."""
        return self.tokens[0] - self.sent


def clients(url: str) -> aiohttp.ClientSession:
    """Return a session for any number of concurrent requests to a server."""
    bound = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    return aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=bound)


async def ask(session: aiohttp.ClientSession, drawn: random.Random, cancelled: float = 0.0) -> Asked:
    """Ask for one completion and read it to its end.

    `cancelled`: the probability that the client closes the connection after a random number of tokens.
    """
    prompt = [drawn.randrange(1, 100) for _ in range(drawn.randint(*PROMPT))]
    num_tokens = drawn.randint(*ANSWER)
    most = drawn.randrange(1, num_tokens) if drawn.random() < cancelled else num_tokens + 1
    body = {"prompt": prompt, "ignore_eos": True, "max_tokens": num_tokens, "stream": True, "temperature": 0}
    asked = Asked(time.monotonic())
    try:
        async with session.post("/v1/completions", json=body) as answer:
            after = answer.headers.get("Retry-After", "")
            if answer.status == 429 and after.isdecimal() and int(after) > 0:
                asked.retry_after = int(after)
            elif answer.status != 200:
                asked.error = f"HTTP {answer.status}: {(await answer.text())[:200]}"
            else:
                await _read(answer, most, asked)
    except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
        asked.error = f"{type(error).__name__}: {error}"
    asked.ended = time.monotonic()
    return asked


async def _read(answer: aiohttp.ClientResponse, most: int, asked: Asked) -> None:
    """Read a stream, at most `most` tokens of it."""
    asked.error = "the stream ended early"
    async for text in answer.content:
        if text.startswith(b'data: {"error"'):
            asked.error = f"a stream ended with {text.decode().strip()}"
            return
        if text.startswith(b"data: {"):
            asked.tokens.append(time.monotonic())
            if len(asked.tokens) == most:
                answer.close()
                asked.cancelled, asked.error = True, ""
                return
        elif text.startswith(b"data: [DONE]"):
            asked.error = ""


async def arrivals(rate: float, seconds: float, drawn: random.Random) -> AsyncIterator[None]:
    """Yield at random times (a Poisson process), on average `rate` times per second, for `seconds`."""
    begin, offset = time.monotonic(), 0.0
    while (offset := offset + drawn.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, begin + offset - time.monotonic()))
        yield


async def capacity(url: str, seed: int) -> float:
    """Return the requests per second that are completed while CLIENTS clients ask one after another.

    Raises RuntimeError if a request fails or is refused.
    """
    drawn = random.Random(seed)
    begin = time.monotonic()
    asked: list[Asked] = []

    async def client(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < begin + CAPACITY_SECONDS:
            entry = checked(await ask(session, drawn))
            if entry.retry_after:  # refusals are fast: counted as requests, they would exceed the capacity many times
                raise RuntimeError(
                    f"the server refused one of {CLIENTS} concurrent requests (429), so its capacity is unknown: see "
                    "--max-queue-depth and --max-expected-wait"
                )
            asked.append(entry)

    async with clients(url) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    counted = [entry for entry in asked if CAPACITY_SECONDS / 2 <= entry.ended - begin < CAPACITY_SECONDS]
    return len(counted) / (CAPACITY_SECONDS / 2)


def checked(asked: Asked) -> Asked:
    """Return a request that was completed or refused; raise RuntimeError for one that failed."""
    if asked.error:
        raise RuntimeError(asked.error)
    return asked
