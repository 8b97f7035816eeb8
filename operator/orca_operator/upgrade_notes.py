"""Sentences of FullyApplied about what an older version or an earlier spec has left behind. Pure."""

from __future__ import annotations

from orca_operator.api import Spec
from orca_operator.observe import Observed
from orca_operator.revision import stored_boot

LIVE_TIMEOUTS_VERSION = 4
"""Version of the contract from which on masters change timeouts and admission while they run."""


def notes(spec: Spec, namespace: str, name: str, revision: str, observed: Observed) -> list[str]:
    """Return the sentences of a deployment whose fields all take effect; the first one says so, and from when."""
    report, kept = observed.reports.get(revision), stored_boot(name, revision, observed)
    is_old = report is not None and report.contract_version < LIVE_TIMEOUTS_VERSION
    sentences = [old_master(revision) if is_old else "every field takes effect"]
    wanted, longest = spec.drain_timeout_seconds, kept.options.get("drain-timeout") if kept is not None else None
    if longest is not None and wanted > longest:
        sentences.append(longer_drain(longest, wanted))
    if spec.rollout_strategy.filled_in_by_old_schema:
        sentences.append(old_strategy(namespace, name))
    return sentences


def longer_drain(in_force: int, wanted: int) -> str:
    """Return a sentence about a drain that is longer than the grace period of the running pods."""
    return f"drainTimeoutSeconds: {in_force} is in force; {wanted} begins with the next revision (spec.restart.id)"


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
