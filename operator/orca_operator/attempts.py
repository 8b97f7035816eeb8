"""`Attempts`: the changes that a master answered without carrying them out, so that none is sent again and again.

A change is sent again when the spec asks for another, or when the master reports something else than after the attempt:
it was restarted, or changed by somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass

from orca_contract import routes
from orca_contract.message import Message
from orca_contract.state import StateReport

from orca_operator.plan import PutScheduler, PutTopology

Put = PutTopology | PutScheduler
REFUSALS = (400, 409, 413, 422)
"""HTTP statuses of a master that a repetition does not change."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    body: Message
    left: Message
    """What the master reported afterwards."""
    problem: str


class Attempts:
    """Of one OrcaDeployment."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[str, str], _Attempt] = {}

    def is_futile(self, put: Put, report: StateReport) -> bool:
        """Whether the same change left the master as it is."""
        attempt = self._attempts.get((put.revision, route(put)))
        return attempt is not None and attempt.body == put.body and attempt.left == _part(put, report)

    def note(self, put: Put, report: StateReport, problem: str = "") -> str:
        """Notes what the master reports after a change, or that it refused the change (`problem`).

        Returns why the change is not carried out, "" if it is.
        """
        key, left = (put.revision, route(put)), _part(put, report)
        if not problem and left == put.body:
            self._attempts.pop(key, None)
            return ""
        problem = problem or f"PUT {route(put)} was answered, and changed nothing or something else"
        self._attempts[key] = _Attempt(put.body, left, f"master of revision {put.revision}: {problem}")
        return self._attempts[key].problem

    def problems(self, puts: list[Put]) -> tuple[str, ...]:
        """Returns why those of `puts` that were attempted are not carried out, and forgets all other attempts."""
        keys = [(put.revision, route(put)) for put in puts]
        self._attempts = {key: attempt for key, attempt in self._attempts.items() if key in keys}
        return tuple(attempt.problem for attempt in self._attempts.values())


def route(put: Put) -> str:
    """Returns the path of a change."""
    return routes.TOPOLOGY if isinstance(put, PutTopology) else routes.SCHEDULER


def _part(put: Put, report: StateReport) -> Message:
    """Returns the part of a report that a change is about."""
    return report.topology if isinstance(put, PutTopology) else report.scheduler
