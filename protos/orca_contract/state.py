"""The reports of a master: `GET /state` and `/progressz`.

A reader keeps an unknown state, phase or reason as text, because the master may be newer.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from orca_contract.message import Message, Since
from orca_contract.reasons import Reason
from orca_contract.scheduler import SchedulerKnobs
from orca_contract.topology import Topology

LONGEST_WAIT = 60.0
"""Maximum of `GET /state?wait=SECONDS`."""
LAST_SECOND = 253402300799
"""Last second of the year 9999, the maximum of Python's dates."""


def _none_if_invalid(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return None


class EngineState(enum.StrEnum):
    """LOADING → SERVING ⇄ RECOVERING (no pipeline serves) → FAILED (recovery given up) or STOPPED.

    PAUSED (since version 6): the topology has no pipelines and is closed.
    """

    LOADING = "loading"
    SERVING = "serving"
    RECOVERING = "recovering"
    PAUSED = "paused"
    FAILED = "failed"
    STOPPED = "stopped"


class JournalState(enum.StrEnum):
    """State of a master's journal. OFF: it cannot be written, until the next start of the master."""

    NONE = "none"
    ON = "on"
    OFF = "off"


class PipelinePhase(enum.StrEnum):
    """Phase of a pipeline, in the order of formation; PENDING: no master reports the pipeline."""

    PENDING = "Pending"
    CONNECTING = "Connecting"
    LOADING = "Loading"
    FORMING = "Forming"
    SERVING = "Serving"
    RECOVERING = "Recovering"
    """Lost, or being formed again after a failure."""


class FailureReport(Message):
    """The latest failure of a pipeline."""

    at: Annotated[float, Field(ge=0, le=LAST_SECOND, allow_inf_nan=False)]
    """Seconds since 1970."""
    reason: Annotated[Reason | str, Field(union_mode="left_to_right")]
    worker: str
    """Address of the worker that failed; "" if unknown."""
    message: str
    recovery_seconds: Annotated[float, Field(allow_inf_nan=False)] | None
    """Seconds until the pipeline served again; None while it does not."""


class PipelineReport(Message):
    """One pipeline of the topology."""

    id: str
    phase: Annotated[PipelinePhase | str, Field(union_mode="left_to_right")]
    epoch: int
    loaded_workers: int
    """Workers that have loaded their weights."""
    last_failure: FailureReport | None


class StateReport(Message):
    """The response to `GET /state` and to every change."""

    contract_version: Annotated[int, Since(1)] = 0
    """The master's version; masters of version 0 do not send it."""
    state: Annotated[EngineState | str, Field(union_mode="left_to_right")]
    failure: str
    """Why the engine is in this state; "" while it serves."""
    draining: bool
    idle: bool
    """No request is unfinished."""
    running: int
    """Requests that hold K/V slots."""
    waiting: int
    """Requests in the queue, without those of batches."""
    topology: Annotated[Topology | None, WrapValidator(_none_if_invalid)]
    """None if the reader's version rejects a value in the topology."""
    scheduler: Annotated[SchedulerKnobs | None, WrapValidator(_none_if_invalid)]
    """None if the reader's version rejects a value of a knob."""
    pipelines: list[PipelineReport]
    journal: Annotated[JournalState | str, Since(3), Field(union_mode="left_to_right")] = JournalState.NONE
    journal_failure: Annotated[str, Since(3)] = ""
    """Why the journal is off; "" otherwise."""
    in_force: Annotated[SchedulerKnobs | None, Since(4), WrapValidator(_none_if_invalid)] = None
    """All values in force; None if the master is older, or if the reader's version rejects a value."""
    idle_seconds: Annotated[float | None, Since(6), Field(ge=0, allow_inf_nan=False)] = None
    """Seconds for which the engine has served without an accepted request; 0 otherwise, None from older masters."""
    has_backlog: Annotated[bool, Since(6)] = False
    """Requests are unfinished that came after the topology was empty and before a pipeline served again."""


class ProgressReport(Message):
    """The response to `GET /progressz`; its fields have underscores on the wire."""

    model_config = ConfigDict(alias_generator=None)

    state: Annotated[EngineState | str, Field(union_mode="left_to_right")]
    stalled: bool
    iterations: int
    """Iterations that have returned."""
    unfinished_requests: int
    running_requests: int
    waiting_requests: int
    seconds_since_progress: float | None
    stall_timeout_seconds: float
