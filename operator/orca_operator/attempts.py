"""`Attempts`: changes that a master rejected, or accepted without effect; each is sent only once.

A change is sent again if the spec requests a different one, or if the master's report differs from the report after the
attempt: the master was restarted, or another client changed its state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orca_contract.message import Message
from orca_contract.state import StateReport

from orca_operator.actions import Put

REFUSALS = (400, 404, 405, 409, 413, 422)
"""HTTP statuses of a master for which a retry is useless."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    body: Message
    reported: Message | None
    """The master's report after the attempt."""
    problem: str


class Attempts:
    """Attempted changes of one OrcaDeployment."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[str, str], _Attempt] = {}

    def futile(self, put: Put, report: StateReport) -> str:
        """Return why the same change had no effect on a master in the same state, "" if it is to be sent."""
        attempt = self._attempts.get((put.revision, put.route))
        if attempt is None or (attempt.body, attempt.reported) != (put.body, put.reported(report)):
            return ""
        return attempt.problem

    def note(self, put: Put, report: StateReport, refusal: str = "") -> str:
        """Record the master's report after a change, or the refusal of the change.

        Return why the change is not in effect, "" if it is.
        """
        key, reported = (put.revision, put.route), put.reported(report)
        if not refusal and reported == put.body:
            self._attempts.pop(key, None)
            return ""
        problem = refusal or f"the master accepted PUT {put.route}, but still reports other values than were sent"
        self._attempts[key] = _Attempt(put.body, reported, problem)
        return problem

    def prune(self, puts: Sequence[Put], reported: Collection[str]) -> None:
        """Drop attempts of changes that are no longer planned, except those of masters that did not report."""
        planned = {(put.revision, put.route) for put in puts}
        self._attempts = {
            key: attempt for key, attempt in self._attempts.items() if key in planned or key[0] not in reported
        }
