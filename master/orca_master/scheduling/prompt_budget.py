"""`prompt_limit`: how many tokens of prompts an iteration may have, so that answers keep their pace. Pure.

A prompt that joins an iteration delays the next token of every answer that is generated. While there are answers on the
pipeline, in this iteration or in one in flight, an iteration has at most `prompt_budget` tokens of prompts (chunked
prefill with a bound on the inter-token latency, as in Sarathi-Serve, OSDI 2024).
"""

from __future__ import annotations

from collections.abc import Iterable

from orca_master.scheduling.request import Request

LEAST_TOKENS = 16
"""Of prompts per iteration: a prompt ends in bounded time, whatever the target."""


def prompt_limit(prompt_budget: int | None, admitted: Iterable[Request]) -> int | None:
    """Return the tokens of prompts of an iteration beside the `admitted` requests, None for no limit."""
    if prompt_budget is None or not any(request.is_answering for request in admitted):
        return None
    return max(LEAST_TOKENS, prompt_budget)
