"""The two Services: one for clients, and a headless one that gives every pod a DNS name."""

from __future__ import annotations

from typing import Any

from orca_operator import names
from orca_operator.manifests.context import Context


def client_service(context: Context, alone: bool = False) -> dict[str, Any]:
    """Return the Service that clients use: port 80 to the ready masters of all revisions, or of the present alone."""
    settings = context.spec.service
    metadata = context.metadata(context.name, {**settings.labels, **names.labels(context.name)})
    if settings.annotations:
        metadata["annotations"] = settings.annotations
    every, present = names.selector(context.name, names.MASTER), names.master_selector(context.name, context.revision)
    port = {"name": "http", "port": 80, "targetPort": names.API_PORT, "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": settings.type,
            "selector": present if alone else every,
            "ports": [port],
        },
    }


def control_service(context: Context) -> dict[str, Any]:
    """Return the headless Service: pods must be resolvable before they are ready (lws KEP-820)."""
    port = {"name": "control", "port": names.WORKER_PORT, "targetPort": names.WORKER_PORT, "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": context.metadata(names.control(context.name), names.labels(context.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(context.name, names.WORKER),
            "ports": [port],
        },
    }
