"""One request of a load: a streamed completion over HTTP, with the arrival times of its tokens."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from orca_bench.traces import TracedRequest


@dataclass(slots=True)
class Outcome:
    """The outcome of a request. Times in seconds of `time.perf_counter`; `tokens` has the arrival time of each token.

    `lag`: delay of the sending after the plan. `error`: kind and message, "" for an answered request.
    """

    request: TracedRequest
    planned: float
    sent: float = 0.0
    tokens: list[float] = field(default_factory=list)
    num_output: int = 0
    num_input: int = 0
    error: str = ""

    @property
    def lag(self) -> float:
        """Seconds between the planned and the actual sending."""
        return self.sent - self.planned


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any], outcome: Outcome) -> None:
    """Post a completion and record the arrival time of each token. Record errors instead of raising them."""
    outcome.sent = time.perf_counter()
    try:
        async with session.post(url, json=body) as answer:
            if answer.status != 200:
                message = " ".join((await answer.text()).split())
                outcome.error = f"HTTP {answer.status}: {message[:200]}"
                return
            finished = False
            async for line in answer.content:
                if line.startswith(b"data:"):
                    finished = _event(line[5:].strip(), outcome) or finished
            if not outcome.error and not (finished and outcome.tokens):
                outcome.error = "truncated: the stream ended before the completion"
    except TimeoutError:
        outcome.error = "timeout"
    except (aiohttp.ClientError, OSError) as error:
        outcome.error = f"{type(error).__name__}: {error}"


def _event(data: bytes, outcome: Outcome) -> bool:
    """Process one event; return True if it is the last. A token's text may be empty."""
    if data == b"[DONE]":
        return True
    now = time.perf_counter()
    event = json.loads(data)
    if "error" in event:
        outcome.error = f"stream: {event['error'].get('message', event['error'])}"
        return True
    if usage := event.get("usage"):
        outcome.num_output = usage.get("completion_tokens", 0)
        outcome.num_input = usage.get("prompt_tokens", 0)
    if not event.get("choices"):
        return False
    outcome.tokens.append(now)
    return event["choices"][0].get("finish_reason") is not None


def body_of(request: TracedRequest, model: str) -> dict[str, Any]:
    """Return the body of a request, with `ignore_eos` to generate the output length of the trace."""
    return {
        "model": model,
        "prompt": request.prompt if isinstance(request.prompt, str) else list(request.prompt),
        "max_tokens": request.output_length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
