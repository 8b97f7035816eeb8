"""The autoscaler of an OrcaDeployment, and what the conditions say of it. Pure.

An autoscaler sets `spec.replicas` through the scale subresource; the operator reads `replicas` and never writes it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from orca_contract.reasons import Reason

from orca_operator.api import Spec
from orca_operator.api_autoscaling import Autoscaling
from orca_operator.diagnose import LONGEST_MESSAGE
from orca_operator.manifests.context import Context
from orca_operator.manifests.hpa import horizontal_pod_autoscaler
from orca_operator.manifests.scaled_object import scaled_object
from orca_operator.observe import Object, Observed

BUILDERS = {"hpa": horizontal_pod_autoscaler, "keda": scaled_object}
KINDS = {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}
"""Kind of the autoscaler by `autoscaling.backend`. An HPA that KEDA creates has another name and owner."""
WAY_OUT = {
    "hpa": "Kubernetes serves this kind since 1.23: create an HPA of an older version yourself, and remove "
    "spec.autoscaling",
    "keda": "install KEDA and restart the operator, or set spec.autoscaling.backend to hpa",
}
HEALTHY = {"hpa": {"AbleToScale": True, "ScalingActive": True}, "keda": {"Ready": True, "Fallback": False}}
"""Conditions of an autoscaler, and whether they are True while it works; those that are True are always present."""
NEEDS_PODS, DISABLED = "ScalingActive", "ScalingDisabled"
"""Condition of an HPA that is False without pods, and its reason with `spec.replicas` 0, where no HPA acts."""
Verdict = tuple[bool, str, str]
"""Status, reason and message of a condition."""


def wanted_autoscaler(context: Context) -> list[dict[str, Any]]:
    """Return the manifest of the autoscaler, none without `spec.autoscaling`."""
    autoscaling = context.spec.autoscaling
    return [] if autoscaling is None else [BUILDERS[autoscaling.backend](context, autoscaling)]


def replaced_kind(context: Context, observed: Observed) -> str:
    """Return the kind of the other backend's autoscaler while it exists, else "".

    The new autoscaler waits for its end: KEDA's admission rejects a ScaledObject whose target an HPA scales.
    """
    autoscaling = context.spec.autoscaling
    return "" if autoscaling is None else _other_kind(context.name, autoscaling.backend, observed)


def not_implemented(spec: Spec) -> list[str]:
    """Return the values of `autoscaling` that have no effect yet, for FullyApplied."""
    fields = spec.autoscaling.not_implemented if spec.autoscaling is not None else []
    return [f"{field} (spec.autoscaling.minReplicas: 0 scales to zero)" for field in fields]


def scaling_ready(
    name: str, spec: Spec | None, observed: Observed, skipped: Collection[str], refusal: str, asleep: bool
) -> Verdict:
    """Return ScalingReady: without an autoscaler True, else what the autoscaler says of itself.

    `skipped`: kinds that the cluster does not serve, with their API; `refusal`: why the autoscaler was not written;
    `asleep`: there are no pipelines because no request comes, and an HPA finds no pods to compute with.
    """
    if spec is None:
        return False, Reason.INVALID_SPEC.value, "the spec is invalid"
    if spec.autoscaling is None:
        return True, "Scalable", "spec.replicas and the scale subresource take effect"
    holds, reason, message = _verdict(name, spec, observed, skipped, refusal, asleep)
    if asleep and holds:
        reason, message = Reason.SCALED_TO_ZERO.value, "the next request, or the autoscaler, adds pipelines"
    lacking = not_implemented(spec)
    note = f"; not implemented yet: spec.{', spec.'.join(lacking)}" if lacking else ""
    return holds, reason, message[: LONGEST_MESSAGE - len(note)] + note


def _verdict(
    name: str, spec: Spec, observed: Observed, skipped: Collection[str], refusal: str, asleep: bool
) -> Verdict:
    assert spec.autoscaling is not None
    backend = spec.autoscaling.backend
    kind = KINDS[backend]
    if unserved := [entry for entry in skipped if entry.endswith(f" {kind}")]:
        return False, "KindNotServed", f"this cluster does not serve {unserved[0]}: {WAY_OUT[backend]}"
    if refusal:
        return False, "AutoscalerRejected", refusal
    if spec.suspend:
        return False, "Suspended", "spec.suspend is set: there are no pipelines to scale"
    if other := _other_kind(name, backend, observed):
        return False, "AutoscalerPending", f"{kind} {name} is created as soon as {other} {name} is deleted"
    return _reported(f"{kind} {name}", spec.autoscaling, observed.find(kind, name), asleep)


def _reported(autoscaler: str, autoscaling: Autoscaling, live: Object | None, asleep: bool) -> Verdict:
    """Return the verdict of the autoscaler's own conditions."""
    entries = (live.get("status") or {}).get("conditions") or [] if live is not None else []
    states: dict[str, Object] = {entry["type"]: entry for entry in entries}
    healthy = HEALTHY[autoscaling.backend]
    for condition, status in healthy.items():
        state = states.get(condition, {})
        if asleep and condition == NEEDS_PODS and state.get("reason") != DISABLED:
            continue
        if state and (state["status"] == "True") != status:
            words = state.get("message") or f"{condition} is {state['status']}"
            return False, state.get("reason") or condition, f"{autoscaler}: {words}"
    if not {condition for condition, status in healthy.items() if status} <= states.keys():
        return False, "AutoscalerPending", f"{autoscaler} has not reported yet: its controller may not run"
    limit = states.get("ScalingLimited", {})
    note = f"; {limit.get('message', '')}" if limit.get("status") == "True" else ""
    least, most = autoscaling.effective_min_replicas, autoscaling.max_replicas
    return True, "Autoscaling", f"{autoscaler} sets spec.replicas, from {least} to {most}{note}"


def _other_kind(name: str, backend: str, observed: Observed) -> str:
    others = (kind for other, kind in KINDS.items() if other != backend)
    return next((kind for kind in others if observed.find(kind, name) is not None), "")
