"""JournalReady from a report; test_conditions.py has the reasons of a report."""

from __future__ import annotations

from orca_operator.journal_condition import JOURNAL_OFF, journal_ready
from support.orcadeployments import context, report


def test_without_a_report_the_condition_has_the_reason_of_ready():
    assert journal_ready(None, "LoadingWeights", "loading") == (False, "LoadingWeights", "loading")


def test_an_unknown_state_of_a_newer_master_is_not_reported():
    said = report(context())
    assert journal_ready(said, "Serving", "") == (True, "Recording", "the master records accepted requests")
    newer = said.model_copy(update={"journal": "elsewhere"})
    assert journal_ready(newer, "Serving", "")[:2] == (False, "NotReported")
    off = said.model_copy(update={"journal": "off", "journal_failure": "disk full"})
    assert journal_ready(off, "Serving", "")[1] == JOURNAL_OFF
