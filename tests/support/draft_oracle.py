"""Drafters whose drafts are right but for every third position, and go on behind the end of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orca_master.scheduling.batch import Batch
from orca_master.scheduling.draft_costs import DraftCosts
from orca_master.scheduling.model_drafts import Guesses, ModelDrafts
from orca_master.scheduling.prompt_lookup import PromptLookup
from orca_master.scheduling.request import Request


class DraftOracle(PromptLookup):
    """Drafts for `request`, which generates `answer`."""

    def __init__(self, request: Request, answer: Sequence[int]) -> None:
        super().__init__(())
        self._request, self._answer = request, answer

    def draft(self, threshold: float, most: int) -> tuple[int, ...]:
        return guess(self._request, self._answer, most)

    def saved(self, count: int, costs: DraftCosts, rows: int) -> float:
        return math.inf


class ModelOracle(ModelDrafts):
    """What a draft model drafts for `request`, which generates `answer`: always as many tokens as possible."""

    def __init__(self, request: Request, answer: Sequence[int]) -> None:
        super().__init__(Guesses(), request.num_tokens)
        self._request, self._answer = request, answer

    def draft(self, threshold: float, most: int) -> tuple[int, ...]:
        return self._drafted[: max(0, most)]

    def wanted(self, costs: DraftCosts, rows: int, most: int, num_left: int) -> int:
        return most

    def draft_after(self, count: int) -> None:
        """Receive `count` tokens after the last one."""
        self.receive(guess(self._request, self._answer, count))


def guess(request: Request, answer: Sequence[int], count: int) -> tuple[int, ...]:
    """Return `count` tokens after the request's last one."""
    known = len(request.generated)
    following = [*answer[known:], *[1] * count][:count]
    return tuple(token + (known + index) % 3 // 2 for index, token in enumerate(following))


def draft_after(batch: Batch) -> None:
    """Give the requests of a committed batch the drafts that it wanted of a draft model."""
    for scheduled in batch.requests:
        if scheduled.num_drafts and not scheduled.is_stale:
            assert isinstance(scheduled.request.drafter, ModelOracle)
            scheduled.request.drafter.draft_after(scheduled.num_drafts)
