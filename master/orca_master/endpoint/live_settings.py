"""`LiveSettings`: the options that `PUT /scheduler` changes while the engine runs (docs/contracts.md, section 6)."""

from __future__ import annotations

from dataclasses import replace

from orca_contract.scheduler import SchedulerKnobs

from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.errors import ConfigurationError


class LiveSettings:
    """Options at the start of the master, and the changes of the last `PUT /scheduler`."""

    def __init__(self, start: EngineConfig) -> None:
        self._start = start
        self._changes = SchedulerKnobs()

    def change(self, present: EngineConfig, knobs: SchedulerKnobs) -> EngineConfig:
        """Return the options after a change, which `changed` reports from now on.

        An omitted field of version 0 of the contract keeps its value, an omitted newer one returns to the start's.
        Raises ConfigurationError for a recovery timeout if nothing restarts the workers.
        """
        start = self._start
        if knobs.recovery_timeout_seconds is not None and start.worker_owner is WorkerOwner.ENGINE:
            raise ConfigurationError("recoveryTimeoutSeconds: the master was started without --recovery-timeout")
        self._changes = knobs
        return replace(
            present,
            max_batch_size=knobs.max_batch_size or present.max_batch_size,
            token_budget=knobs.token_budget or present.token_budget,
            max_queued_requests=knobs.max_queue_depth or present.max_queued_requests,
            max_expected_wait=knobs.max_expected_wait_seconds or start.max_expected_wait,
            stall_timeout=_stall_timeout(knobs, start),
            recovery_timeout=knobs.recovery_timeout_seconds or start.recovery_timeout,
            admission=knobs.admission or start.admission,
            scheduling_policy=knobs.policy or start.scheduling_policy,
            drain_timeout=knobs.drain_timeout_seconds or start.drain_timeout,
        )

    def changed(self, present: EngineConfig) -> SchedulerKnobs:
        """Return the values of version 0, and the newer values that were changed (`StateReport.scheduler`)."""
        return self._changes.model_copy(
            update={
                "max_batch_size": present.max_batch_size,
                "token_budget": present.token_budget,
                "max_queue_depth": present.max_queued_requests,
            }
        )


def in_force(present: EngineConfig) -> SchedulerKnobs:
    """Return all values in force (`StateReport.in_force`)."""
    return SchedulerKnobs(
        max_batch_size=present.max_batch_size,
        token_budget=present.token_budget,
        max_queue_depth=present.max_queued_requests,
        max_expected_wait_seconds=present.max_expected_wait,
        stall_timeout_seconds="automatic" if present.stall_timeout is None else present.stall_timeout,
        recovery_timeout_seconds=present.recovery_timeout or None,
        admission=present.admission,
        policy=present.scheduling_policy,
        drain_timeout_seconds=present.drain_timeout,
    )


def _stall_timeout(knobs: SchedulerKnobs, start: EngineConfig) -> float | None:
    if knobs.stall_timeout_seconds is None:
        return start.stall_timeout
    return None if knobs.stall_timeout_seconds == "automatic" else knobs.stall_timeout_seconds
