"""`SchedulerKnobs`: the settings of Algorithm 1 that can change while the engine runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orca_contract.message import Message, Positive, Since

PositiveSeconds = Annotated[float, Field(gt=0, le=4_000_000, allow_inf_nan=False)]


class SchedulerKnobs(Message):
    """`PUT /scheduler`: an omitted field of version 0 keeps its value, an omitted newer one returns to the start's.

    A master reports the newer fields only while they are changed, so that an operator of version 0 knows the report.
    """

    max_batch_size: Positive | None = None
    """Maximum number of requests per iteration."""
    token_budget: Positive | None = None
    """Maximum number of input tokens per iteration; None in a report: no bound."""
    max_queue_depth: Positive | None = None
    """Maximum number of waiting requests."""
    max_expected_wait_seconds: Annotated[PositiveSeconds | None, Since(2)] = None
    """Maximum expected wait of a new request; None: that of the master's command line, also after another value."""
