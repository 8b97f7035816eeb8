"""The condition `JournalReady`, from the report of a master."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca_contract.state import JournalState

from orca_operator.diagnose import LONGEST_MESSAGE, diagnose_silence
from orca_operator.observe import Observed

JOURNAL_OFF = "JournalOff"
"""Reason of JournalReady, and of an Event, while the master cannot write its journal."""
JOURNAL_VERSION = 3
"""Version of the contract from which on masters report the state of their journal."""


def journal_ready(
    observed: Observed, revision: str, before: Mapping[str, Any], reason: str, message: str
) -> tuple[bool, str, str]:
    """Return JournalReady from the report of the master of the serving revision.

    Without a report it is `before`, the previous one, while the master is ready and its silence has no cause yet, else
    False with `reason`.
    """
    report = observed.reports.get(revision)
    if before and observed.is_silent(revision) and not diagnose_silence(observed, revision):
        return before["status"] == "True", before["reason"], before["message"]
    if report is None:
        return False, reason, message
    if report.journal == JournalState.ON:
        return True, "Recording", "the master records accepted requests"
    if report.journal == JournalState.OFF:
        text = f"the journal is off until the next start of the master: {report.journal_failure}"
        return False, JOURNAL_OFF, text[:LONGEST_MESSAGE]
    if report.journal == JournalState.NONE and report.contract_version >= JOURNAL_VERSION:
        return False, "NoJournal", "spec.master.journal.enabled is false, or spec.master.apiProcesses is set"
    return False, "NotReported", "the master's version does not report the state of its journal"
