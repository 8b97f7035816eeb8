"""The condition `JournalReady`, from the report of a master."""

from __future__ import annotations

from orca_contract.state import JournalState, StateReport

from orca_operator.diagnose import LONGEST_MESSAGE

JOURNAL_OFF = "JournalOff"
"""Reason of JournalReady, and of an Event, while the master cannot write its journal."""
JOURNAL_VERSION = 3
"""Version of the contract from which on masters report the state of their journal."""


def journal_ready(report: StateReport | None, reason: str, message: str) -> tuple[bool, str, str]:
    """Return JournalReady from the report of the serving master; without a report it is False with `reason`."""
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
