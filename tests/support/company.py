"""`Company`: sends requests to a server alone and together, and says which answers differ."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from support.answers import CHAT, COMPLETIONS, MESSAGES, StreamedAnswer, texts, whole
from support.mixture import Ask
from support.resuming import rest_of

SECONDS = 300.0
"""Bound of a round."""
PAUSE = 0.02
"""Mean time between two arrivals, in seconds."""
LEAVING = 0.25
"""Part of the clients that leave before the end."""
MOST_EVENTS = 12
"""Of a stream whose client leaves."""


@dataclass
class Company:
    """Requests to the server at `url`. `priorities`: drawn from for each request, if any. `alone`: answers alone.

    `resumes`: the server has a journal. Clients that lose their connection continue their stream, or ask again.
    """

    url: str
    asks: Sequence[Ask]
    priorities: Sequence[int] = ()
    resumes: bool = False
    alone: list[Any] = field(default_factory=list)
    num_left: int = 0
    """Clients that left before the end."""
    num_lost: int = 0
    """Connections that were lost."""
    num_resumed: int = 0
    """Streams that were continued."""

    async def ask_alone(self) -> None:
        """Send each request after the answer to the one before, with no cached prefix where the route has salts."""
        async with self._client() as client, asyncio.timeout(SECONDS):
            for number, ask in enumerate(self.asks):
                self.alone.append(await self._whole(client, ask, self._body(ask, f"alone {number}", 0)))

    async def ask_together(self, seed: int, disturb: Callable[[], None] | None = None) -> list[str]:
        """Send all requests in a random order at random times; return which answers differ from those alone.

        `disturb` is called once, when half of the requests have been sent. Raise TimeoutError after SECONDS.
        """
        dice = random.Random(seed)
        order = dice.sample(range(len(self.asks)), len(self.asks))
        tasks = []
        async with self._client() as client, asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for place, number in enumerate(order):
                tasks.append(group.create_task(self._one(client, number, random.Random(f"{seed} {number}"), seed)))
                await asyncio.sleep(dice.expovariate(1 / PAUSE))
                if disturb is not None and place == len(order) // 2:
                    disturb()
        return sorted(found for task in tasks if (found := task.result()))

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, timeout=SECONDS, limits=limits)

    def _body(self, ask: Ask, salt: str, priority: int) -> dict[str, Any]:
        if ask.path == MESSAGES:
            return ask.body
        return {**ask.body, "cache_salt": salt} | ({"priority": priority} if self.priorities else {})

    async def _one(self, client: httpx.AsyncClient, number: int, dice: random.Random, seed: int) -> str:
        """Return how an answer differs, or nothing."""
        ask, expected = self.asks[number], self.alone[number]
        body = self._body(ask, f"together {seed}", dice.choice(self.priorities or (0,)))
        leaves_after = dice.randrange(MOST_EVENTS) if dice.random() < LEAVING else None
        if not ask.can_stream or dice.random() < 0.3:
            if leaves_after is not None:
                await self._leave(client, ask, body, leaves_after * PAUSE)
                return ""
            found = await self._whole(client, ask, body)
            return "" if found == expected else f"{ask.kind}: {body}: {found} instead of {expected}"
        answer = StreamedAnswer(ask.path, ask.num_choices)
        await self._stream(client, ask, body, answer, leaves_after)
        if leaves_after is None:
            found = answer.end()
            return "" if found == expected else f"{ask.kind}, stream: {body}: {found} instead of {expected}"
        known = texts(ask.path, expected)
        agree = all(known.get(index, "").startswith(text) for index, text in answer.texts.items())
        return "" if agree else f"{ask.kind}, left: {body}: {answer.texts} instead of {known}"

    async def _whole(self, client: httpx.AsyncClient, ask: Ask, body: dict[str, Any]) -> Any:
        while True:
            try:
                answer = await client.post(ask.path, json=body)
            except httpx.TransportError:
                if not self.resumes:
                    raise
                await self._lose()
                continue
            if not self._comes_later(answer):
                break
            await asyncio.sleep(PAUSE)
        assert answer.status_code == 200, (ask.kind, body, answer.text)
        return whole(ask.path, answer.json())

    def _comes_later(self, answer: httpx.Response) -> bool:
        """Return True if the server is starting again."""
        return self.resumes and answer.status_code == 503

    async def _lose(self) -> None:
        """Count a lost connection, and wait a moment."""
        self.num_lost += 1
        await asyncio.sleep(PAUSE)

    async def _leave(self, client: httpx.AsyncClient, ask: Ask, body: dict[str, Any], seconds: float) -> None:
        """Close the connection of a request if its answer has not come in time."""
        try:
            await asyncio.wait_for(self._whole(client, ask, body), seconds)
        except TimeoutError:
            self.num_left += 1

    async def _stream(
        self, client: httpx.AsyncClient, ask: Ask, body: dict[str, Any], answer: StreamedAnswer, most: int | None
    ) -> None:
        """Read a stream to its end, or close the connection after `most` events."""
        body = {**body, "stream": True}
        if ask.path in (COMPLETIONS, CHAT):
            body["stream_options"] = {"include_usage": True}
        count = 0
        while True:
            try:
                async with self._connection(client, ask, body, answer) as stream:
                    if self._comes_later(stream):
                        await asyncio.sleep(PAUSE)
                        continue
                    assert stream.status_code == 200, (ask.kind, body, await stream.aread())
                    async for line in stream.aiter_lines():
                        if count == most:
                            self.num_left += 1
                            return
                        count += answer.take(line)
                    return
            except httpx.TransportError:
                if not self.resumes:
                    raise
                await self._lose()

    def _connection(
        self, client: httpx.AsyncClient, ask: Ask, body: dict[str, Any], answer: StreamedAnswer
    ) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        """Return the stream from its begin, or from the event after the last one."""
        if not answer.number:
            return client.stream("POST", ask.path, json=body)
        self.num_resumed += 1
        path, headers = rest_of(answer.request_id, answer.number)
        return client.stream("GET", path, headers=headers)
