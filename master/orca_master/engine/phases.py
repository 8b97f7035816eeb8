"""Phases of a pipeline (supervisor.py): which follow which, and the default reason of a failure in each."""

from __future__ import annotations

from collections.abc import Mapping

from orca_contract.reasons import Reason
from orca_contract.state import PipelinePhase

TRANSITIONS: Mapping[PipelinePhase, frozenset[PipelinePhase]] = {
    PipelinePhase.CONNECTING: frozenset({PipelinePhase.LOADING, PipelinePhase.RECOVERING}),
    PipelinePhase.LOADING: frozenset({PipelinePhase.LOADING, PipelinePhase.FORMING, PipelinePhase.RECOVERING}),
    PipelinePhase.FORMING: frozenset({PipelinePhase.SERVING, PipelinePhase.RECOVERING}),
    PipelinePhase.SERVING: frozenset({PipelinePhase.RECOVERING}),
    PipelinePhase.RECOVERING: frozenset({PipelinePhase.CONNECTING}),
}
DEFAULT_REASONS: Mapping[PipelinePhase, Reason] = {
    PipelinePhase.CONNECTING: Reason.RENDEZVOUS_TIMEOUT,
    PipelinePhase.LOADING: Reason.WORKER_CRASH_LOOP,
    PipelinePhase.FORMING: Reason.RENDEZVOUS_TIMEOUT,
    PipelinePhase.SERVING: Reason.COMMUNICATOR_ERROR,
}
"""Default reason of a failure, by the state in which the failure occurred."""
