"""`Streams`: a number of concurrent streaming clients, which compare every response with the undisturbed one."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
from support.resuming import KINDS, Transcript, by_choice, request_of, stream

STREAM_SECONDS = 7200.0
"""Bound of one stream, which a fault may interrupt every few seconds; each step of the campaign has its own bound."""
PROMPTS = ([1, 2, 3], [40, 41], [9, 8, 7, 6, 5])


@dataclass
class TimedTranscript(Transcript):
    """`times`: of each event, in seconds of the monotonic clock."""

    name: str = ""
    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Times of lost connections."""
    refusals: list[float] = field(default_factory=list)
    """Times of answers with status 503."""
    silence: float = 0.0
    """Longest time on a connection without a line, comments included."""
    _last_line: float = 0.0

    def take(self, line: str) -> None:
        """See Transcript."""
        super().take(line)
        now = time.monotonic()
        if self._last_line:
            self.silence = max(self.silence, now - self._last_line)
        self._last_line = now
        if line.startswith("data: "):
            self.times.append(now)

    def lose(self) -> None:
        """See Transcript."""
        super().lose()
        self.losses.append(time.monotonic())
        self._last_line = 0.0

    def refuse(self) -> None:
        """See Transcript."""
        super().refuse()
        self.refusals.append(time.monotonic())

    def pause(self, since: float, until: float) -> float:
        """Return the longest time without an event that lies in part between `since` and `until`."""
        times = [at for at in self.times if at <= until] + [until] * (not self.complete)
        gaps = [later - max(earlier, since) for earlier, later in pairwise(times) if later > since]
        return max(gaps, default=0.0)


@dataclass(slots=True)
class Tally:
    """Counts of the streams that have ended."""

    undisturbed: int = 0
    """Without a lost connection."""
    resumed: int = 0
    """After one or more lost connections."""
    losses: list[float] = field(default_factory=list)
    """Times of all lost connections."""
    refusals: list[float] = field(default_factory=list)
    """Times of all answers with status 503."""
    silence: float = 0.0
    """Longest time without a line on a stream."""
    differing: list[str] = field(default_factory=list)


class Streams:
    """`number` clients of the server at `url`, each of which plays randomly chosen requests one after the other."""

    def __init__(self, url: str, number: int, rng: random.Random, max_tokens: int) -> None:
        self.tally = Tally()
        self._number = number
        self._rng = rng
        self._client = httpx.AsyncClient(
            base_url=url, timeout=60, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )
        self._requests = {
            f"{kind} {index}": _body(kind, prompt, max_tokens) for kind in KINDS for index, prompt in enumerate(PROMPTS)
        }
        self._expected: dict[str, dict[int, list[str]]] = {}
        self._open: dict[int, TimedTranscript] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._going = asyncio.Event()
        self._ending = False

    async def record(self) -> None:
        """Play every request once, before any fault."""
        transcripts = {name: TimedTranscript(name=name) for name in self._requests}
        await asyncio.gather(*(self._play(name, transcript) for name, transcript in transcripts.items()))
        self._expected = {name: by_choice(transcript) for name, transcript in transcripts.items()}

    def begin(self) -> None:
        """Start the clients."""
        self._going.set()
        self._tasks = [asyncio.create_task(self._loop(index)) for index in range(self._number)]

    def pause(self) -> None:
        """Start no further request."""
        self._going.clear()

    def resume(self) -> None:
        """Start requests again."""
        self._going.set()

    async def end(self) -> None:
        """Let the requests under way end."""
        self._ending = True
        self._going.set()
        await asyncio.gather(*self._tasks)
        await self._client.aclose()

    def check(self) -> None:
        """Raise the exception of a client that failed."""
        for task in self._tasks:
            if task.done() and not self._ending:
                task.result()

    def under_way(self, since: float) -> list[TimedTranscript]:
        """Return the incomplete streams with an event after `since`."""
        return [
            entry for entry in self._open.values() if entry.times and entry.times[-1] > since and not entry.complete
        ]

    @property
    def num_open(self) -> int:
        """Number of requests under way."""
        return len(self._open)

    @property
    def num_events(self) -> list[int]:
        """Number of events of each request under way."""
        return [len(entry.times) for entry in self._open.values()]

    async def _loop(self, index: int) -> None:
        while True:
            await self._going.wait()
            if self._ending:
                return
            name = self._rng.choice(list(self._requests))
            transcript = TimedTranscript(name=name)
            self._open[index] = transcript
            try:
                await self._play(name, transcript)
            finally:
                del self._open[index]
            self._count(transcript)

    async def _play(self, name: str, transcript: TimedTranscript) -> None:
        await stream(self._client, *self._requests[name], transcript, seconds=STREAM_SECONDS)

    def _count(self, transcript: TimedTranscript) -> None:
        tally = self.tally
        tally.resumed += transcript.num_losses > 0
        tally.undisturbed += transcript.num_losses == 0
        tally.losses += transcript.losses
        tally.refusals += transcript.refusals
        tally.silence = max(tally.silence, transcript.silence)
        if by_choice(transcript) != self._expected[transcript.name]:
            tally.differing.append(f"{transcript.name} ({transcript.request_id})")


def _body(kind: str, prompt: list[int], max_tokens: int) -> tuple[str, dict[str, Any]]:
    path, body = request_of(KINDS[kind])
    body["max_tokens"] = max_tokens
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": " ".join(map(str, prompt))}]
    elif kind != "two prompts":
        body["prompt"] = prompt
    return path, body
