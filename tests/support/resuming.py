"""A client that continues its streams after a lost connection, by request id and Last-Event-ID."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

RESUME_SECONDS = 120.0


@dataclass
class Transcript:
    """The events of a stream in order. `num_losses`: how often the connection was lost."""

    events: list[str] = field(default_factory=list)
    last_id: int = 0
    request_id: str = ""
    num_losses: int = 0

    def take(self, line: str) -> None:
        """Take a line of the stream; fails on an error, a gap and a repetition."""
        if line.startswith("id: "):
            assert int(line[4:]) == self.last_id + 1, (line, self.last_id)
            self.last_id += 1
        elif line.startswith("data: "):
            if line != "data: [DONE]":
                event = json.loads(line[6:])
                assert "error" not in event, event
                self.request_id = event.pop("id")
                del event["created"]
                line = json.dumps(event)
            self.events.append(line)
            assert len(self.events) == self.last_id

    @property
    def complete(self) -> bool:
        return self.events[-1:] == ["data: [DONE]"]


async def stream(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], transcript: Transcript, key: str = ""
) -> None:
    """Read a stream to its end, with as many connections as that takes."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with asyncio.timeout(RESUME_SECONDS):
        while not transcript.complete:
            method, url, content = "POST", path, body
            if transcript.request_id:
                method, url, content = "GET", f"/v1/requests/{transcript.request_id}", None
                headers |= {"Accept": "text/event-stream", "Last-Event-ID": str(transcript.last_id)}
            try:
                async with client.stream(method, url, json=content, headers=headers) as answer:
                    if answer.status_code != 200:
                        assert answer.status_code == 503, (answer.status_code, await answer.aread())
                        await asyncio.sleep(0.05)
                        continue
                    async for line in answer.aiter_lines():
                        if line.startswith('data: {"error"') and "server ends" in line:
                            break
                        transcript.take(line)
            except httpx.TransportError:
                transcript.num_losses += 1
                await asyncio.sleep(0.05)
