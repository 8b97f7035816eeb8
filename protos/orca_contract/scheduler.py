"""`SchedulerKnobs`: what of Algorithm 1 changes while the engine runs."""

from __future__ import annotations

from orca_contract.message import Message, Positive


class SchedulerKnobs(Message):
    """`PUT /scheduler`: a field that is left out keeps its value."""

    max_batch_size: Positive | None = None
    """Requests per iteration."""
    token_budget: Positive | None = None
    """Input tokens per iteration; None in a report: no bound."""
    max_queue_depth: Positive | None = None
    """Requests that may wait."""
