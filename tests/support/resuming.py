"""A client that continues its streams after a lost connection, by request id and Last-Event-ID."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

RESUME_SECONDS = 120.0
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "seed": 5},
    "penalties": {"temperature": 0.7, "seed": 6, "presence_penalty": 0.9, "repetition_penalty": 1.2},
    "logprobs": {"temperature": 0.7, "seed": 7, "logprobs": 2},
    "two choices": {"temperature": 0.9, "seed": 8, "n": 2, "stream_options": {"include_usage": True}},
    "two prompts": {"prompt": [[1, 2], [9, 8, 7]], "temperature": 0.9, "seed": 9, "echo": True},
    "echoed logprobs": {"prompt": [[1, 2, 9], [8, 7]], "temperature": 0.9, "seed": 12, "echo": True, "logprobs": 1},
    "stop string": {"temperature": 0.9, "seed": 10, "stop": ["zzzz", " the"]},
    "chat": {"messages": [{"role": "user", "content": "Once"}], "temperature": 0.9, "seed": 11},
    "allowed tokens": {"temperature": 0.9, "seed": 13, "allowed_token_ids": [*range(40, 90), 3]},
}
BASE = {"prompt": [1, 2, 3], "max_tokens": 900, "stream": True, "ignore_eos": True, "return_token_ids": True}


@dataclass
class Transcript:
    """The events of a stream in order.

    `num_losses`: connections that ended before the stream, in any way; `num_refusals`: answers with status 503.
    """

    events: list[str] = field(default_factory=list)
    last_id: int = 0
    request_id: str = ""
    num_losses: int = 0
    num_refusals: int = 0

    def take(self, line: str) -> None:
        """Take a line of the stream; fails on an error, a gap and a repetition."""
        if line.startswith("id: "):
            assert int(line[4:]) == self.last_id + 1, (line, self.last_id)
            self.last_id += 1
        elif line.startswith("data: "):
            if line != "data: [DONE]":
                event = json.loads(line[6:])
                assert "error" not in event, event
                request_id = event.pop("id")
                assert self.request_id in ("", request_id)
                self.request_id = request_id
                del event["created"]
                line = json.dumps(event)
            self.events.append(line)
            assert len(self.events) == self.last_id

    def lose(self) -> None:
        """Note that a connection has ended before the stream."""
        self.num_losses += 1

    def refuse(self) -> None:
        """Note an answer with status 503."""
        self.num_refusals += 1

    @property
    def complete(self) -> bool:
        return self.events[-1:] == ["data: [DONE]"]


def rest_of(request_id: str, last_id: int) -> tuple[str, dict[str, str]]:
    """Return path and headers of the request for the events of a stream after number `last_id`."""
    return f"/v1/requests/{request_id}", {"Accept": "text/event-stream", "Last-Event-ID": str(last_id)}


async def stream(
    client: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    transcript: Transcript,
    key: str = "",
    seconds: float = RESUME_SECONDS,
) -> None:
    """Read a stream to its end, with as many connections as that takes; raise TimeoutError after `seconds`."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with asyncio.timeout(seconds):
        while not transcript.complete:
            method, url, content = "POST", path, body
            if transcript.request_id:
                method, content = "GET", None
                url, further = rest_of(transcript.request_id, transcript.last_id)
                headers |= further
            try:
                async with client.stream(method, url, json=content, headers=headers) as answer:
                    if answer.status_code != 200:
                        assert answer.status_code == 503, (answer.status_code, await answer.aread())
                        transcript.refuse()
                        await asyncio.sleep(0.05)
                        continue
                    async for line in answer.aiter_lines():
                        if line.startswith('data: {"error"') and "server ends" in line:
                            break
                        transcript.take(line)
            except httpx.TimeoutException as error:  # a stream that waits has comments
                raise AssertionError(f"silence on request {transcript.request_id}") from error
            except httpx.TransportError:
                pass
            if not transcript.complete:
                transcript.lose()
                await asyncio.sleep(0.05)


def request_of(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return path and body of a kind of request."""
    if "messages" in fields:
        return "/v1/chat/completions", {**{name: BASE[name] for name in BASE if name != "prompt"}, **fields}
    return "/v1/completions", {**BASE, **fields}


def by_choice(transcript: Transcript) -> dict[int, list[str]]:
    """Return the events of each choice in order; choices of one request run at their own paces. -1: other events."""
    events: dict[int, list[str]] = {}
    for event in transcript.events:
        choices = [] if event == "data: [DONE]" else json.loads(event)["choices"]
        events.setdefault(choices[0]["index"] if choices else -1, []).append(event)
    return events
