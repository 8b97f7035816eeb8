"""What counts as progress; test_conditions.py and scenarios/progress-deadline have the conditions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from orca_operator.progress import count_ready, is_overdue, moves_on
from support.orcadeployments import NOW

PROGRESSING = {"status": "True", "reason": "LoadingWeights", "observedGeneration": 3}


@pytest.mark.parametrize(
    ("generation", "ready", "before", "expected"),
    [(3, 1, 1, False), (3, 2, 1, True), (3, 0, 1, False), (4, 1, 1, True)],
)
def test_an_edit_and_each_pipeline_that_becomes_ready_are_progress(generation, ready, before, expected):
    assert moves_on(PROGRESSING, generation, ready, before) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(60, False), (61, True)])
def test_the_deadline_counts_from_the_last_transition(seconds, expected):
    since = (NOW - timedelta(seconds=seconds)).isoformat()
    assert is_overdue({**PROGRESSING, "lastTransitionTime": since}, 60, NOW) == expected


@pytest.mark.parametrize(("reason", "expected"), [("ProgressDeadlineExceeded", True), ("Complete", False)])
def test_a_deadline_that_is_over_stays_over(reason, expected):
    assert is_overdue({"status": "False", "reason": reason}, 60, NOW) == expected


def test_ready_pipelines_are_those_of_the_revision_with_all_workers():
    entries = [
        {"revision": revision, "readyWorkers": workers} for revision in "ab" for workers in ("2/2", "1/2", "0/2")
    ]
    assert count_ready(entries, "a") == 1
    assert count_ready(entries, None) == 0
