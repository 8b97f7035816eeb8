"""Conditions while the operator has no report from a master that accepts requests. Pure.

A call may fail now and then, and a restarted operator does not know how long a master has been silent. So until the
silence has a cause (`diagnose_silence`), conditions keep their states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca_contract.reasons import Reason

from orca_operator.diagnose import Diagnosis, diagnose_silence
from orca_operator.observe import Observed

CAUSES = (Reason.MASTER_UNREACHABLE, Reason.ADMIN_UNAUTHORIZED)
"""Reasons of `diagnose_silence`."""


def earlier_cause(observed: Observed, revision: str, ready: Mapping[str, Any]) -> Diagnosis | None:
    """Return the cause of a master's silence in `ready`, the previous condition; None if the cause is outdated.

    It is outdated if the master has reported, is not ready, or if its silence has a cause in this pass.
    """
    waits = observed.is_silent(revision) and diagnose_silence(observed, revision) is None
    if not waits or ready.get("reason") not in CAUSES:
        return None
    return Diagnosis(Reason(ready["reason"]), ready["message"])


def not_known_to_be_applied(
    observed: Observed, revision: str, before: Mapping[str, Any], generation: int
) -> tuple[bool, str, str] | None:
    """Return FullyApplied while it is unknown what has reached a silent master; None if the master is not silent.

    `before`, the previous condition, is kept only at its own generation: nothing says that a later edit has arrived.
    """
    if not observed.is_silent(revision):
        return None
    if cause := diagnose_silence(observed, revision):
        return False, "NotApplied", cause.message
    if before.get("observedGeneration") == generation:
        return before["status"] == "True", before["reason"], before["message"]
    return False, "NotApplied", f"the master of revision {revision} has not reported since the last change of the spec"
