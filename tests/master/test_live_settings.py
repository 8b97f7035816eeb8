"""What `PUT /scheduler` makes of the options of a master, and what the master reports of them."""

from __future__ import annotations

import dataclasses

import pytest
from orca_contract.scheduler import SchedulerKnobs
from orca_master.endpoint.live_settings import LiveSettings, in_force
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.errors import ConfigurationError

START = EngineConfig(
    worker_owner=WorkerOwner.CLUSTER, recovery_timeout=90.0, stall_timeout=20.0, admission="paged",
    scheduling_policy="priority", max_expected_wait=7.0,
)  # fmt: skip
VERSION_0 = {"maxBatchSize": 32, "tokenBudget": 2048, "maxQueueDepth": 4096}
AT_START = {
    "maxExpectedWaitSeconds": 7.0, "stallTimeoutSeconds": 20.0, "recoveryTimeoutSeconds": 90.0, "admission": "paged",
    "policy": "priority", "drainTimeoutSeconds": 30.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "field", "option"),
    [
        ("maxBatchSize", 7, "max_batch_size", 7),
        ("tokenBudget", 7, "token_budget", 7),
        ("maxQueueDepth", 7, "max_queued_requests", 7),
        ("maxExpectedWaitSeconds", 30.0, "max_expected_wait", 30.0),
        ("stallTimeoutSeconds", 30.0, "stall_timeout", 30.0),
        ("stallTimeoutSeconds", "automatic", "stall_timeout", None),
        ("recoveryTimeoutSeconds", 30.0, "recovery_timeout", 30.0),
        ("admission", "reserve", "admission", "reserve"),
        ("policy", "fcfs", "scheduling_policy", "fcfs"),
        ("drainTimeoutSeconds", 5.0, "drain_timeout", 5.0),
    ],
)
def test_a_knob_changes_its_option_alone_and_is_reported(name, value, field, option):
    settings = LiveSettings(START)
    changed = settings.change(START, SchedulerKnobs.model_validate({name: value}))
    assert changed == dataclasses.replace(START, **{field: option})
    assert settings.changed(changed).wire() == VERSION_0 | {name: value}
    assert in_force(changed).wire() == VERSION_0 | AT_START | {name: value}


def test_an_omitted_newer_knob_returns_to_the_start_and_an_older_one_stays():
    settings = LiveSettings(START)
    assert settings.changed(START).wire() == VERSION_0
    knobs = {
        "maxBatchSize": 7,
        "stallTimeoutSeconds": "automatic",
        "admission": "reserve",
        "policy": "fcfs",
        "drainTimeoutSeconds": 5,
    }
    changed = settings.change(START, SchedulerKnobs.model_validate(knobs))
    back = settings.change(changed, SchedulerKnobs())
    assert back == dataclasses.replace(START, max_batch_size=7)
    assert settings.changed(back).wire() == VERSION_0 | {"maxBatchSize": 7}


def test_a_master_that_owns_its_workers_has_no_recovery_timeout():
    """Without anybody who restarts workers there is nothing to wait for."""
    start = EngineConfig(worker_owner=WorkerOwner.ENGINE)
    settings = LiveSettings(start)
    with pytest.raises(ConfigurationError, match=r"recoveryTimeoutSeconds: .* --recovery-timeout"):
        settings.change(start, SchedulerKnobs(max_batch_size=7, recovery_timeout_seconds=5))
    assert settings.changed(start).wire() == VERSION_0, "a refused change leaves nothing"
    assert "recoveryTimeoutSeconds" not in in_force(start).wire()
