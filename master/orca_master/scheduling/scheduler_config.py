"""`SchedulerConfig`: options of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Options of the scheduler. `token_budget` is in input tokens per iteration, None for no limit.

    `speculative_tokens`: most drafted tokens of a request in an iteration, 0 for none; `has_draft_model`: who drafts.
    `keeps_spare_iteration`: see spare_iteration.py. `looks_ahead`: see lookahead.py.
    """

    max_batch_size: int
    n_workers: int
    token_budget: int | None = None
    balanced: bool = True
    speculative_tokens: int = 0
    has_draft_model: bool = False
    keeps_spare_iteration: bool = False
    looks_ahead: bool = False

    @property
    def batch_size(self) -> int:
        """Most requests of an iteration, each of which computes a token at least."""
        return min(self.max_batch_size, self.token_budget or self.max_batch_size)

    @property
    def num_places(self) -> int:
        """Requests of full batches in all stages of a pipeline."""
        return self.batch_size * self.n_workers

    @property
    def most_in_flight(self) -> int:
        """Most iterations in flight on a pipeline."""
        return self.n_workers + self.keeps_spare_iteration
