"""Common parts of master and worker pods: the restricted security context, probes, and the user's settings."""

from __future__ import annotations

from typing import Any

from orca_contract import routes

from orca_operator import names
from orca_operator.api import Spec
from orca_operator.diagnose import FETCH_CONTAINER
from orca_operator.manifests.model import fetch_container, model_source
from orca_operator.pod_settings import PodSettings

SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
POD_SECURITY: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CACHE_GROUP = 10001
"""Group of the images' user (Dockerfile), which needs write access to a PersistentVolumeClaim.

Every user may write to an emptyDir. Pods without a volume that needs the group have none: OpenShift's default security
context constraint (restricted-v2) refuses groups outside the namespace's range.
"""
READABLE_BY_ALL = 0o004
"""Bit of a file's mode."""
GRACE_BEYOND_DRAIN = 10
"""Seconds to close streams and end processes after the drain."""
NODE_TOLERANCE_SECONDS = 30


def security(capabilities: list[str]) -> dict[str, Any]:
    """Return the security context of a container that has these capabilities and no others."""
    return SECURITY | {"capabilities": SECURITY["capabilities"] | {"add": capabilities}} if capabilities else SECURITY


def probe(path: str, **settings: int) -> dict[str, Any]:
    """Return an HTTP probe on the probe port."""
    return {"httpGet": {"path": path, "port": names.PROBE_PORT}, "timeoutSeconds": 5, **settings}


def probes() -> dict[str, Any]:
    """Return the three probes; only the master's readiness depends on other pods."""
    return {
        "startupProbe": probe(routes.STARTUP, periodSeconds=1, failureThreshold=120),
        "livenessProbe": probe(routes.LIVE, periodSeconds=10, failureThreshold=6),
        "readinessProbe": probe(routes.READY, periodSeconds=1, failureThreshold=2),
    }


def downward_env() -> list[dict[str, Any]]:
    """Return the variables of the downward API."""
    fields = {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid", "POD_IP": "status.podIP"}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]


def merged_env(defaults: list[dict[str, Any]], overrides: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the variables of the container; those of the user override the defaults."""
    names = {entry.get("name") for entry in overrides}
    return [entry for entry in defaults if entry["name"] not in names] + overrides


def tolerations(additional: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tolerations that evict a pod from a lost node after NODE_TOLERANCE_SECONDS, and the additional ones."""
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_TOLERANCE_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ] + additional


def pod_template(
    spec: Spec,
    settings: PodSettings,
    service_account: str,
    labels: dict[str, str],
    annotations: dict[str, str],
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
    fetch_options: list[str],
    capabilities: list[str],
) -> dict[str, Any]:
    """Return a pod template around one container.

    `fetch_options` select the files of a downloaded model (model.py); `capabilities` are added to the container.
    """
    source = model_source(spec)
    volumes = [{"name": "tmp", "emptyDir": {}}, *volumes]
    container = {
        **container,
        "imagePullPolicy": spec.image_pull_policy,
        "env": merged_env(downward_env() + container.get("env", []), settings.env),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            *container.get("volumeMounts", []),
            *([source.mount] if source.mount else []),
            *settings.volume_mounts,
        ],
        "securityContext": security(capabilities),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **probes(),
    }
    pod: dict[str, Any] = {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.drain_timeout_seconds + GRACE_BEYOND_DRAIN,
        "securityContext": dict(POD_SECURITY),
        "tolerations": tolerations(settings.tolerations),
        "containers": [container],
        "volumes": volumes + ([source.volume] if source.volume else []) + settings.volumes,
    }
    if source.fetched:
        if any(map(_needs_group, [*pod["volumes"], *_volumes_of_template(settings)])):
            pod["securityContext"]["fsGroup"] = CACHE_GROUP
        needs = {} if _sets_fetch_resources(settings) else without_devices(container.get("resources", {}))
        env = merged_env(downward_env(), settings.env)
        fetch = fetch_container(spec, container["image"], fetch_options, env, settings.volume_mounts, SECURITY, needs)
        pod["initContainers"] = [*settings.init_containers, fetch]
    elif settings.init_containers:
        pod["initContainers"] = settings.init_containers
    optional = {
        "nodeSelector": settings.node_selector,
        "affinity": settings.affinity,
        "priorityClassName": settings.priority_class_name,
        "runtimeClassName": settings.runtime_class_name,
        "imagePullSecrets": [{"name": secret.name} for secret in spec.image_pull_secrets],
    }
    pod |= {key: value for key, value in optional.items() if value}
    if settings.pod_template is not None and settings.pod_template.spec.get("hostNetwork"):
        pod["dnsPolicy"] = "ClusterFirstWithHostNet"  # the names of other pods are the cluster's
    # Only pods: two operators of different versions would overwrite each other's label on all other objects.
    version = {names.VERSION_LABEL: names.RELEASE}
    metadata = {
        "labels": {**version, **settings.labels, **labels},
        "annotations": {**annotations, **settings.annotations},
    }
    return {"metadata": metadata, "spec": pod}


def _volumes_of_template(settings: PodSettings) -> list[dict[str, Any]]:
    return settings.pod_template.spec.get("volumes") or [] if settings.pod_template is not None else []


def _needs_group(volume: dict[str, Any]) -> bool:
    """Whether the kubelet gives access to a volume by the group: to claims, and to files that only root may read."""
    if volume.get("persistentVolumeClaim") or volume.get("ephemeral"):
        return True
    modes = [source.get("defaultMode") for source in volume.values() if isinstance(source, dict)]
    return any(isinstance(mode, int) and not mode & READABLE_BY_ALL for mode in modes)  # podTemplate has no types


def _sets_fetch_resources(settings: PodSettings) -> bool:
    """Whether `podTemplate` has resources for the init container: a limit below the default request is invalid."""
    entries = (settings.pod_template.spec.get("initContainers") or []) if settings.pod_template is not None else []
    return any(entry.get("name") == FETCH_CONTAINER and entry.get("resources") for entry in entries)


def without_devices(given: dict[str, Any]) -> dict[str, Any]:
    """Return the requests and limits of a container without devices.

    A ResourceQuota demands the rest of init containers, too. A pod's own request is that of its largest container.
    """
    kept = {key: {name: value for name, value in given[key].items() if "/" not in name} for key in given}
    return {key: values for key, values in kept.items() if values}


def resources(settings: PodSettings, devices: dict[str, str], default_requests: dict[str, str]) -> dict[str, Any]:
    """Return requests and limits with the devices in both.

    A default request applies only if the user sets neither a request nor a limit, which implies a request.
    """
    requests = {name: str(value) for name, value in settings.resources.requests.items()}
    limits = {name: str(value) for name, value in settings.resources.limits.items()}
    defaults = {name: value for name, value in default_requests.items() if name not in limits}
    combined: dict[str, Any] = {"requests": defaults | requests | devices}
    if limits | devices:
        combined["limits"] = limits | devices
    return combined
