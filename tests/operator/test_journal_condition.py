"""JournalReady from a report; test_conditions.py has the reasons of a report."""

from __future__ import annotations

from orca_operator.journal_condition import JOURNAL_OFF, journal_ready
from orca_operator.observe import Observed
from support.orcadeployments import context, everything

DEMO = context()
SERVING = everything(DEMO)
RECORDING = {"status": "True", "reason": "Recording", "message": "the master records accepted requests"}


def test_without_a_report_the_condition_has_the_reason_of_ready():
    for children, before in ((SERVING.children, {}), ((), RECORDING)):  # never reported; the master is not ready
        found = journal_ready(Observed(children), DEMO.revision, before, "LoadingWeights", "loading")
        assert found == (False, "LoadingWeights", "loading")


def test_a_ready_master_that_misses_one_call_keeps_the_condition():
    for before in (RECORDING, {"status": "False", "reason": JOURNAL_OFF, "message": "disk full"}):
        found = journal_ready(Observed(SERVING.children), DEMO.revision, before, "Serving", "")
        assert found == (before["status"] == "True", before["reason"], before["message"])


def test_the_silence_of_a_master_is_the_reason_once_it_has_a_cause():
    silent = Observed(SERVING.children, unanswered={DEMO.revision: "timed out"})
    found = journal_ready(silent, DEMO.revision, RECORDING, "MasterUnreachable", "no report")
    assert found == (False, "MasterUnreachable", "no report")


def test_an_unknown_state_of_a_newer_master_is_not_reported():
    assert ready() == (True, "Recording", "the master records accepted requests")
    assert ready(journal="elsewhere")[:2] == (False, "NotReported")
    assert ready(journal="off", journal_failure="disk full")[1] == JOURNAL_OFF


def ready(**reported) -> tuple[bool, str, str]:
    said = SERVING.reports[DEMO.revision].model_copy(update=reported)
    return journal_ready(Observed((), {DEMO.revision: said}), DEMO.revision, {}, "Serving", "")
