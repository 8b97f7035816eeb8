"""Sentences of FullyApplied about what an older version of the operator or of the CRD has left behind. Pure."""

from __future__ import annotations

LIVE_TIMEOUTS_VERSION = 4
"""Version of the contract from which on masters change timeouts and admission while they run."""


def old_master(revision: str) -> str:
    """Return a sentence about a master that gets some live settings only at its start."""
    return (
        "every field takes effect, but a change of recoveryPolicy or scheduler.admission only at the next start of the "
        f"master of revision {revision}, which has an older version; a new value of spec.restart.id replaces it"
    )


def old_strategy(namespace: str, name: str) -> str:
    """Return a sentence about a `rolloutStrategy` that was a default of an older CRD."""
    patch = '{"spec":{"rolloutStrategy":null}}'
    command = f"kubectl -n {namespace} patch orca {name} --type=merge -p '{patch}'"
    return f"rolloutStrategy has the values of an older CRD's defaults (Recreate); for RollingUpdate: {command}"
