"""`SchedulerKnobs`: the settings of Algorithm 1 that can change while the engine runs."""

from __future__ import annotations

from orca_contract.message import Message, Positive


class SchedulerKnobs(Message):
    """`PUT /scheduler`: an omitted field keeps its value."""

    max_batch_size: Positive | None = None
    """Maximum number of requests per iteration."""
    token_budget: Positive | None = None
    """Maximum number of input tokens per iteration; None in a report: no bound."""
    max_queue_depth: Positive | None = None
    """Maximum number of waiting requests."""
