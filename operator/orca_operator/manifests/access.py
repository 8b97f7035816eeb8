"""Builders of ServiceAccount, admin Secret, NetworkPolicies, PodDisruptionBudget and PodMonitor."""

from __future__ import annotations

from typing import Any

from orca_contract import routes

from orca_operator import names
from orca_operator.manifests.context import Context


def service_account(context: Context) -> dict[str, Any]:
    """Return the account of all pods; it has no permissions, and no pod mounts its token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": context.metadata(context.name, names.labels(context.name)),
        "automountServiceAccountToken": False,
    }


def admin_secret(context: Context, token: str) -> dict[str, Any]:
    """Return the Secret with the token of the master's admin port."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": context.metadata(names.admin(context.name), names.labels(context.name)),
        "type": "Opaque",
        "stringData": {"token": token},
    }


def network_policies(context: Context) -> list[dict[str, Any]]:
    """Return the policies of masters and workers (docs/contracts.md, section 6); none if disabled."""
    if not context.spec.network_policy.enabled:
        return []
    anyone = [_tcp(names.API_PORT), _tcp(names.PROBE_PORT)]
    operator = {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {names.NAME_LABEL: names.OPERATOR_APP}},
    }
    engine = [
        {"podSelector": {"matchLabels": names.selector(context.name, role)}} for role in (names.MASTER, names.WORKER)
    ]
    master: list[dict[str, Any]] = [{"ports": anyone}, {"from": [operator], "ports": [_tcp(names.ADMIN_PORT)]}]
    # gloo and NCCL listen on ports of their own choice.
    workers: list[dict[str, Any]] = [
        {"ports": [_tcp(names.PROBE_PORT)]},
        {"from": engine, "ports": [{"protocol": "TCP"}]},
    ]
    return [
        _policy(context, names.MASTER, f"{context.name}-master", master),
        _policy(context, names.WORKER, f"{context.name}-worker", workers),
    ]


def _tcp(port: int) -> dict[str, Any]:
    return {"port": port, "protocol": "TCP"}


def _policy(context: Context, role: str, name: str, ingress: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": context.metadata(name, names.labels(context.name)),
        "spec": {
            "podSelector": {"matchLabels": names.selector(context.name, role)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def disruption_budget(context: Context) -> dict[str, Any] | None:
    """Return the PodDisruptionBudget of the workers; None with one pipeline, where it would only block node drains.

    Pods that are not ready, for example because they load weights, block no drain.
    """
    budget = context.spec.pod_disruption_budget
    if not budget.enabled or context.spec.replicas <= 1:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": context.metadata(context.name, names.labels(context.name)),
        "spec": {
            "maxUnavailable": budget.max_unavailable,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(context.name, names.WORKER)},
        },
    }


def pod_monitor(context: Context) -> dict[str, Any] | None:
    """Return the PodMonitor of the Prometheus operator, None if disabled."""
    monitoring = context.spec.monitoring
    if not monitoring.enabled:
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": context.metadata(context.name, {**monitoring.labels, **names.labels(context.name)}),
        "spec": {
            "selector": {"matchLabels": {names.DEPLOYMENT_LABEL: context.name}},
            # An adapter for custom metrics finds the OrcaDeployment of a series by this label (how-to/autoscale.md).
            "podTargetLabels": [names.DEPLOYMENT_LABEL],
            "podMetricsEndpoints": [{"port": "probes", "path": routes.METRICS}],
        },
    }
