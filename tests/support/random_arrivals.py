"""Plays requests to an engine in a random order, while others are cancelled and some are rewound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from support.engines import Harness

Case = tuple[tuple[int, ...], int, dict[str, float]]
"""A prompt, the number of tokens to generate, and options of sampling."""
SAMPLING: tuple[dict[str, float], ...] = (
    {},
    {"temperature": 0.9, "top_p": 0.8, "seed": 11},
    {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"min_tokens": 6, "seed": 3, "temperature": 1.0},
)
"""Kinds of sampling; with penalties and `min_tokens` the tokens before matter."""


async def play(harness: Harness, requests: Sequence[Case], seed: int) -> dict[str, list[int]]:
    """Submit the requests in a random order and in groups; rewind and cancel some; return the others' tokens."""
    chance, left, count = random.Random(seed), list(enumerate(requests)), 0
    chance.shuffle(left)
    while left:
        for _ in range(min(len(left), chance.randint(1, 5))):
            index, (prompt, max_tokens, sampling) = left.pop()
            harness.submit(str(index), prompt, max_tokens, **sampling)
            count += 1
        if chance.random() < 0.5:
            harness.submit(f"cancelled-{len(left)}", requests[0][0], 50)
            await asyncio.sleep(0.02)
            harness.engine.cancel(f"cancelled-{len(left)}")
        await asyncio.sleep(0.03)
        held = [
            request
            for request in harness.engine._requests
            if request.request_id in harness.engine.scheduler._pipeline_of
        ]
        if held:
            harness.engine.scheduler.rewind(chance.choice(held))
            harness.engine._dispatch()
    tokens: dict[str, list[int]] = {}
    async with asyncio.timeout(120):
        while count:
            output = await harness.outputs.get()
            assert output.error is None
            if not output.request_id.startswith("cancelled"):
                assert output.token is not None
                tokens.setdefault(output.request_id, []).append(output.token)
                count -= output.finish_reason is not None
    return tokens
