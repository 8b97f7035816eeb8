"""`FailureLog`: which failed formations are logged; reports of failures: test_supervisor.py and test_engine.py."""

from __future__ import annotations

import pytest
from orca_contract.reasons import Reason
from orca_master.engine import failure_log
from orca_master.engine.failure_log import REPEAT_SECONDS, FailureLog
from orca_master.engine.faults import WorkerLostError


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(failure_log.time, "monotonic", lambda: now[0])
    return now


def test_the_same_error_is_logged_once_a_minute_and_another_one_at_once(clock):
    log, lines = FailureLog(), []
    for second in range(int(2.5 * REPEAT_SECONDS)):
        error = WorkerLostError("other" if second == 100 else "different weights", Reason.DIFFERENT_WEIGHTS)
        if log.is_news(error):
            lines.append((second, str(error)))
        log.note(error, Reason.RECOVERING)
        clock[0] += 1.0
    assert lines == [(0, "different weights"), (60, "different weights"), (100, "other"), (101, "different weights")]


def test_a_pipeline_that_has_served_meanwhile_logs_the_error_again(clock):
    log, error = FailureLog(), WorkerLostError("different weights")
    assert [log.is_news(error), log.is_news(error)] == [True, False]
    log.note_recovery()
    assert log.is_news(error)
