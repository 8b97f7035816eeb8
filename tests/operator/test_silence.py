"""Conditions of a silent master; test_status.py and test_sleep.py have whole statuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from orca_contract.reasons import Reason
from orca_operator import names
from orca_operator.diagnose import Diagnosis
from orca_operator.observe import Observed
from orca_operator.silence import CAUSES, earlier_cause, why_unknown
from support.orcadeployments import context, everything

DEMO = context()
SERVING = everything(DEMO)
SILENT = Observed(SERVING.children)
STARTING = Observed(tuple(child for child in SERVING.children if names.MASTER not in child["metadata"]["name"]))


@pytest.mark.parametrize("reason", CAUSES)
def test_the_cause_of_a_silence_is_kept(reason):
    assert earlier_cause(SILENT, DEMO.revision, {"reason": reason.value, "message": "why"}) == Diagnosis(reason, "why")


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (SILENT, Reason.SERVING),
        (SERVING, Reason.MASTER_UNREACHABLE),
        (STARTING, Reason.MASTER_UNREACHABLE),
        (replace(SILENT, unanswered={DEMO.revision: "timed out"}), Reason.MASTER_UNREACHABLE),
        (replace(SILENT, unauthorized=frozenset({DEMO.revision})), Reason.MASTER_UNREACHABLE),
    ],
    ids=["no silence before", "a report", "the master is not ready", "a new cause", "another cause"],
)
def test_an_outdated_cause_is_not_kept(observed, reason):
    assert earlier_cause(observed, DEMO.revision, {"reason": reason.value, "message": "why"}) is None


def test_without_a_previous_condition_there_is_no_cause():
    assert earlier_cause(SILENT, DEMO.revision, {}) is None


APPLIED = {"status": "True", "reason": "Applied", "message": "every field takes effect", "observedGeneration": 7}
UNREACHABLE = replace(SILENT, unanswered={DEMO.revision: "timed out"})


@pytest.mark.parametrize(
    ("observed", "before", "generation", "expected"),
    [
        (SERVING, APPLIED, 8, ""),
        (STARTING, APPLIED, 8, ""),
        (SILENT, APPLIED, 7, ""),
        (SILENT, APPLIED, 8, "has not reported since the last change of the spec"),
        (SILENT, {}, 7, "has not reported since the last change of the spec"),
        (UNREACHABLE, APPLIED, 7, "timed out"),
        (UNREACHABLE, APPLIED, 8, "timed out"),
    ],
    ids=["report", "starting", "same", "edited", "never", "unreachable", "unreachable, edited"],
)
def test_a_silent_master_is_not_taken_for_one_that_has_applied_an_edit(observed, before, generation, expected):
    found = why_unknown(observed, DEMO.revision, before, generation)
    assert (bool(found), expected in found) == (bool(expected), True)
