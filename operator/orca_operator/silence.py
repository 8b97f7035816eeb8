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


def why_unknown(observed: Observed, revision: str, before: Mapping[str, Any], generation: int) -> str:
    """Return why it is unknown what has reached a silent master; "" if the master is not silent.

    Also "" while its silence has no cause and `before`, the previous FullyApplied, is of this generation: that is kept
    then. Of a later one nothing says that the edit has arrived.
    """
    if not observed.is_silent(revision):
        return ""
    if cause := diagnose_silence(observed, revision):
        return cause.message
    if before.get("observedGeneration") == generation:
        return ""
    return f"the master of revision {revision} has not reported since the last change of the spec"
