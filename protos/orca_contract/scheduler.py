"""`SchedulerKnobs`: the settings of scheduler and failure recovery that can change while the engine runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orca_contract.message import Message, Positive, Since

PositiveSeconds = Annotated[float, Field(gt=0, le=4_000_000, allow_inf_nan=False)]
RecoverySeconds = Annotated[float, Field(gt=0, lt=2**31, allow_inf_nan=False)]
Automatic = Literal["automatic"]
AdmissionName = Literal["reserve", "paged"]
PolicyName = Literal["fcfs", "priority"]


class SchedulerKnobs(Message):
    """`PUT /scheduler`: an omitted field of version 0 keeps its value, an omitted newer one returns to the start's.

    A master reports the newer fields only while they are changed, so that an operator of version 0 knows the report;
    `StateReport.in_force` has all values in force.
    """

    max_batch_size: Positive | None = None
    """Maximum number of requests per iteration."""
    token_budget: Positive | None = None
    """Maximum number of input tokens per iteration; None in a report: no bound."""
    max_queue_depth: Positive | None = None
    """Maximum number of waiting requests."""
    max_expected_wait_seconds: Annotated[PositiveSeconds | None, Since(2)] = None
    """Maximum expected wait of a new request; None: that of the master's command line, also after another value."""
    stall_timeout_seconds: Annotated[PositiveSeconds | Automatic | None, Since(4)] = None
    """Timeout of an iteration; automatic: from the measured times (engine/iteration_watch.py)."""
    recovery_timeout_seconds: Annotated[RecoverySeconds | None, Since(4)] = None
    """How long requests wait, without progress, for a lost pipeline; only for a master with --recovery-timeout."""
    admission: Annotated[AdmissionName | None, Since(4)] = None
    """Allocation of K/V slots: for all tokens of a request at once, or on demand."""
    policy: Annotated[PolicyName | None, Since(4)] = None
    """Order in which requests are served."""
    drain_timeout_seconds: Annotated[PositiveSeconds | None, Since(5)] = None
    """How long running requests may continue at the end of the master; None: as its command line says."""
