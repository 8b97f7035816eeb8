"""`Attempts`: the changes that a master refused or answered without carrying them out, so that each is sent once.

A change is sent again when the spec asks for another, or when the master reports something else than after the attempt:
the master was restarted, or somebody else changed it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orca_contract.message import Message
from orca_contract.state import StateReport

from orca_operator.plan import Put

REFUSALS = (400, 404, 405, 409, 413, 422)
"""HTTP statuses of a master that a repetition does not change."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    body: Message
    left: Message | None
    """What the master reported afterwards."""
    problem: str


class Attempts:
    """Of one OrcaDeployment."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[str, str], _Attempt] = {}

    def futile(self, put: Put, report: StateReport) -> str:
        """Return why the same change did not take effect on a master in the same state, "" if it may."""
        attempt = self._attempts.get((put.revision, put.route))
        if attempt is None or (attempt.body, attempt.left) != (put.body, put.reported(report)):
            return ""
        return attempt.problem

    def note(self, put: Put, report: StateReport, refusal: str = "") -> str:
        """Note what the master reports after a change, or that it refused the change.

        Return why the change is not in effect, "" if it is.
        """
        key, left = (put.revision, put.route), put.reported(report)
        if not refusal and left == put.body:
            self._attempts.pop(key, None)
            return ""
        problem = refusal or f"the master accepted PUT {put.route}, but still reports other values than were sent"
        self._attempts[key] = _Attempt(put.body, left, problem)
        return problem

    def prune(self, puts: Sequence[Put], reported: Collection[str]) -> None:
        """Forgets attempts of changes that are no longer wanted, but none of a master that did not report."""
        wanted = {(put.revision, put.route) for put in puts}
        self._attempts = {
            key: attempt for key, attempt in self._attempts.items() if key in wanted or key[0] not in reported
        }
