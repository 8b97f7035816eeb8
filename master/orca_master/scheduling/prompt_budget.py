"""`iteration_budget`: the input tokens of an iteration beside which running requests keep their pace. Pure.

A prompt that joins an iteration delays the next token of every request whose answer is being generated. While there are
such requests, an iteration has at most `prompt_budget` tokens of prompts beside theirs (chunked prefill with a bound on
the inter-token latency, as in Sarathi-Serve, OSDI 2024); otherwise only the token budget bounds the iteration.
"""

from __future__ import annotations

from collections.abc import Iterable

from orca_master.scheduling.request import Request, RequestState

LEAST_TOKENS = 16
"""Of prompts per iteration: a prompt ends in bounded time, whatever the target."""


def iteration_budget(token_budget: int | None, prompt_budget: int | None, admitted: Iterable[Request]) -> int | None:
    """Return the input tokens of an iteration with the `admitted` requests, None for no limit."""
    if prompt_budget is None:
        return token_budget
    answers = sum(request.state is RequestState.INCREMENT and request.num_uncomputed == 1 for request in admitted)
    if not answers:
        return token_budget
    budget = answers + max(LEAST_TOKENS, prompt_budget)
    return budget if token_budget is None else min(token_budget, budget)
