"""`PromptBudget`: how many tokens of prompts an iteration may have, so that answers keep their pace. Pure.

A prompt that joins an iteration delays the next token of every answer that is generated, and with several partitions it
delays the other stages, which wait for the longest iteration. So a prompt is computed in parts (chunked prefill with a
bound on the inter-token latency, as in Sarathi-Serve, OSDI 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from orca_master.scheduling.request import Request
from orca_master.scheduling.scheduler_config import SchedulerConfig

LEAST_TOKENS = 16
"""Of prompts per iteration: a prompt ends in bounded time, whatever the target."""


class PromptBudget(NamedTuple):
    """Most tokens of prompts of an iteration; None: no limit.

    `beside_answers`: while there are answers on the pipeline, in the iteration or in one in flight. `alone`: while
    there are none. Beside few answers the limit is between the two, if both are known.

    `enough`: behind a prompt that an iteration completes, it begins no further one if its prompts have so many tokens.
    The first tokens of both would come at its end. In iterations of their own the first prompt's comes earlier, and the
    second one's hardly later, because the products of so many rows wait no longer for the weights.
    """

    beside_answers: int | None = None
    alone: int | None = None
    enough: int | None = None

    def limit(self, admitted: Sequence[Request], num_waiting: int, config: SchedulerConfig) -> int | None:
        """Return the tokens of prompts of an iteration beside the `admitted` requests, None for no limit.

        A prompt delays nobody if neither an admitted request nor one of `num_waiting` is another one. With fewer
        requests than stages and no limit beside others, prompts are cut so that no stage is idle, by `alone` divided
        by the number of stages: under little load an iteration was timed over all of them, one after the other.
        """
        num_live = len(admitted) + num_waiting
        limit = self._beside(admitted, config.num_places) if num_live > 1 else None
        if limit is None and self.alone is not None and config.balanced and num_live < config.n_workers:
            return max(LEAST_TOKENS, self.alone // config.n_workers)
        return limit

    def _beside(self, admitted: Sequence[Request], num_places: int) -> int | None:
        """Return the limit beside other requests; `num_places`: answers of full batches in all stages."""
        if self.beside_answers is None:
            return None
        num_answers = sum(request.is_answering for request in admitted)
        if self.alone is None:
            return max(LEAST_TOKENS, self.beside_answers) if num_answers else None
        free = max(0.0, 1 - num_answers / num_places)
        return max(LEAST_TOKENS, self.beside_answers + round(free * (self.alone - self.beside_answers)))
