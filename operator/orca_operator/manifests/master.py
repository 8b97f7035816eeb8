"""The engine master of a revision: one Deployment of one pod, which needs no GPU."""

from __future__ import annotations

from typing import Any

from orca_operator import names
from orca_operator.manifests.context import Context
from orca_operator.manifests.pod import CACHE_GROUP, pod_template, resources
from orca_operator.manifests.tls import pod_tls
from orca_operator.pod_overlay import overlaid
from orca_operator.pod_settings import Journal

BOOT = "/etc/orca"
ADMIN = "/etc/orca-admin"
API_KEYS = "/etc/orca-keys"
JOURNAL = "/var/lib/orca"
JOURNAL_SIZE = "512Mi"
"""Size limit of the journal's emptyDir; the master's own limit of the files is 256 MiB."""
DEFAULT_REQUESTS = {"cpu": "250m", "memory": "512Mi"}


def master_deployment(context: Context) -> dict[str, Any]:
    """Return the Deployment; plan.py sets its replicas."""
    spec, settings = context.spec, context.spec.master
    labels = names.master_labels(context.name, context.revision)
    volumes: list[dict[str, Any]] = [
        {"name": "boot", "configMap": {"name": names.boot(context.name, context.revision)}},
        {"name": "admin", "secret": {"secretName": names.admin(context.name)}},
    ]
    mounts = [
        {"name": "boot", "mountPath": BOOT, "readOnly": True},
        {"name": "admin", "mountPath": ADMIN, "readOnly": True},
    ]
    if (keys := spec.auth.api_key_secret_ref) is not None:
        items = [{"key": keys.key, "path": "keys"}]
        volumes.append({"name": "api-keys", "secret": {"secretName": keys.name, "items": items}})
        mounts.append({"name": "api-keys", "mountPath": API_KEYS, "readOnly": True})
    journal = settings.journal or Journal()
    arguments = ["master", "--topology", f"{BOOT}/topology.json", "--config", f"{BOOT}/master.yaml"]
    has_journal = journal.enabled and not settings.api_processes
    if has_journal:
        # Not in master.yaml, which also reaches the pods of revisions from before the journal.
        # On a claim, the masters of two revisions have a journal at the same time: a journal has one master.
        folder = f"requests-{context.revision}" if journal.claim_name else "requests"
        arguments += ["--journal", f"{JOURNAL}/{folder}", "--resume-window", str(journal.resume_window_seconds)]
        volumes.append({"name": "orca-journal", **_journal_source(journal)})
        mounts.append({"name": "orca-journal", "mountPath": JOURNAL})
    if settings.otlp_traces_endpoint is not None:
        # Not in master.yaml: Kubernetes expands variables in arguments only.
        arguments += ["--otlp-traces-endpoint", settings.otlp_traces_endpoint]
    tls = pod_tls(context, names.MASTER)
    volumes += tls.volumes
    limits = resources(settings, {}, DEFAULT_REQUESTS)
    drain = [
        "orca", "drain", "--admin-port", str(names.ADMIN_PORT), "--admin-token-file", f"{ADMIN}/token",
        "--timeout", str(spec.drain_timeout_seconds), *(tls.options if tls.mounts else []),
    ]  # fmt: skip
    container = {
        "name": names.MASTER,
        "image": settings.image or context.images.master,
        "args": [*arguments, *tls.options, *settings.extra_args],
        "env": _trace_env(context) if settings.otlp_traces_endpoint is not None else [],
        "ports": [
            {"name": "http", "containerPort": names.API_PORT, "protocol": "TCP"},
            {"name": "probes", "containerPort": names.PROBE_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": names.ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": limits,
        "volumeMounts": mounts + tls.mounts,
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
    }
    labelled = settings.model_copy(update={"labels": names.ENGINE_TYPE | settings.labels})
    template = pod_template(spec, labelled, context.name, labels, {}, container, volumes, ["--without-weights"], [])
    if has_journal and journal.claim_name:
        template["spec"]["securityContext"]["fsGroup"] = CACHE_GROUP
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": context.metadata(names.master(context.name, context.revision), labels),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": names.master_selector(context.name, context.revision)},
            "template": overlaid(template, settings),
        },
    }


def _trace_env(context: Context) -> list[dict[str, Any]]:
    """Return the variables by which the master's spans name where it runs (OpenTelemetry's semantic conventions)."""
    attributes = {
        "k8s.namespace.name": context.namespace,
        "k8s.deployment.name": names.master(context.name, context.revision),
        "k8s.pod.name": "$(POD_NAME)",
        "k8s.pod.uid": "$(POD_UID)",
    }
    return [
        {"name": "OTEL_SERVICE_NAME", "value": context.name},
        {"name": "OTEL_RESOURCE_ATTRIBUTES", "value": ",".join(f"{key}={value}" for key, value in attributes.items())},
    ]


def _journal_source(journal: Journal) -> dict[str, Any]:
    """Return the source of the journal's volume."""
    if journal.claim_name:
        return {"persistentVolumeClaim": {"claimName": journal.claim_name}}
    return {"emptyDir": {"sizeLimit": JOURNAL_SIZE}}
