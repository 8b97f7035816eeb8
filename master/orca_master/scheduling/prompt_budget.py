"""`PromptBudget`: how many tokens of prompts an iteration may have, so that answers keep their pace. Pure.

A prompt that joins an iteration delays the next token of every answer that is generated, and with several partitions it
delays the other stages, which wait for the longest iteration. So a prompt is computed in parts (chunked prefill with a
bound on the inter-token latency, as in Sarathi-Serve, OSDI 2024).
"""

from __future__ import annotations

from typing import NamedTuple

LEAST_TOKENS = 16
"""Of prompts per iteration: a prompt ends in bounded time, whatever the target."""


class PromptBudget(NamedTuple):
    """Most tokens of prompts of an iteration; None: no limit.

    `beside_answers`: while there are answers on the pipeline, in the iteration or in one in flight. `alone`: while
    there are none; with a limit for both, iterations beside few answers have a number between the two.
    """

    beside_answers: int | None = None
    alone: int | None = None

    def limit(self, num_answers: int, most_answers: int) -> int | None:
        """Return the tokens of prompts of an iteration; `most_answers`: those of full batches in all stages."""
        if num_answers == 0 or self.beside_answers is None:
            limit = self.alone
        elif self.alone is None:
            limit = self.beside_answers
        else:
            free = max(0.0, 1 - num_answers / most_answers)
            limit = self.beside_answers + round(free * (self.alone - self.beside_answers))
        return None if limit is None else max(LEAST_TOKENS, limit)
