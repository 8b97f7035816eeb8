"""`seconds`: how long a single request to a server takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import httpx


def seconds(url: str, prompt: Sequence[int], max_tokens: int = 1) -> float:
    """Return the seconds of a request for `max_tokens` tokens; raise httpx.HTTPStatusError if it is refused."""
    body = {"prompt": list(prompt), "max_tokens": max_tokens, "ignore_eos": True}
    begin = time.perf_counter()
    httpx.post(f"{url}/v1/completions", json=body, timeout=300).raise_for_status()
    return time.perf_counter() - begin
