"""When an engine that claims to serve counts as stalled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from orca_contract.state import EngineState
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.progress import Progress, progress_report
from orca_master.engine.recovery import Recovery

STALLED = Progress(num_iterations=5, num_unfinished=2, num_running=1, num_waiting=1, since=100.0, stall_timeout=30.0)


@pytest.mark.parametrize(
    ("progress", "now", "stalled"),
    [
        (STALLED, 130.1, True),
        (STALLED, 130.0, False),
        (replace(STALLED, num_unfinished=0), 1000.0, False),
        (replace(STALLED, since=900.0), 910.0, False),
        (replace(STALLED, num_running=0, num_waiting=0), 200.0, True),
    ],
    ids=["too long", "just in time", "nobody waits", "an iteration returned", "requests that the engine never saw"],
)
def test_stall(progress, now, stalled):
    assert bool(progress.stall(now)) == stalled


def test_the_reason_has_the_numbers_and_the_option():
    assert STALLED.stall(150.0) == (
        "stalled: 2 requests wait, and no iteration has returned for 50 s (the bound is 30 s: --stall-timeout)"
    )


@pytest.mark.parametrize("state", EngineState)
def test_only_an_engine_that_claims_to_serve_is_stalled(state):
    """An engine whose pipelines are being formed says that, and not that it is stalled."""
    status = EngineStatus(state, "", False, 100, 64, 64, STALLED, 9, 999, Recovery())
    assert ("stalled" in status.unavailable) == (state is EngineState.SERVING)
    assert progress_report(state, status.serves, status.progress).stalled == (state is EngineState.SERVING)
