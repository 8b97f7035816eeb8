"""`JournalStatus`: the state of a master's journal, for its metrics and for its report to the operator."""

from __future__ import annotations

from dataclasses import dataclass

from orca_contract.state import JournalState

from orca_master.journal.journal import Journal


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """`failure` is the reason why the journal is off, "" otherwise; `num_bytes` the size of its files."""

    state: JournalState
    failure: str = ""
    num_bytes: int = 0


def no_journal() -> JournalStatus:
    """Return the status of a master that has no journal."""
    return JournalStatus(JournalState.NONE)


def status_of(journal: Journal) -> JournalStatus:
    """Return the present status of an opened journal."""
    return JournalStatus(JournalState.ON if journal.is_on else JournalState.OFF, journal.failure, journal.num_bytes)
