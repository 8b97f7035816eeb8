"""`DraftOracle`: a `PromptLookup` whose drafts are right but for every third position, and go on behind the end."""

from __future__ import annotations

from collections.abc import Sequence

from orca_master.scheduling.prompt_lookup import PromptLookup
from orca_master.scheduling.request import Request


class DraftOracle(PromptLookup):
    """Drafts for `request`, which generates `answer`."""

    def __init__(self, request: Request, answer: Sequence[int]) -> None:
        super().__init__(())
        self._request, self._answer = request, answer

    def draft(self, threshold: float, most: int) -> tuple[int, ...]:
        known = len(self._request.generated)
        following = [*self._answer[known:], *[1] * most][:most]
        return tuple(token + (known + index) % 3 // 2 for index, token in enumerate(following))
