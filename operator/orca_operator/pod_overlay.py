"""`podTemplate`: merges the user's partial pod template over the operator's own, and names what it must not change.

The merge has the semantics of a strategic merge patch: maps merge by field, the lists of `MERGE_KEYS` by their keys,
and every other value replaces the operator's. A null counts as absent, as in the rest of the API. Types are left to the
API server, which checks the merged pod before anything changes (the dry run of plan.py). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from orca_operator import names
from orca_operator.diagnose import FETCH_CONTAINER, GPU
from orca_operator.pod_settings import PodSettings, PodTemplate

MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "claims": ("name",),
    "containers": ("name",),
    "env": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ports": ("containerPort", "protocol"),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "tolerations": ("key", "operator", "value", "effect"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Keys that identify the entries of a list, as in the pod API. There, tolerations are replaced as a whole; here they
are merged, so that those for lost nodes and GPUs stay."""
IDENTIFIED = {"containers": "name", "initContainers": "name", "volumes": "name"}
"""Lists of a pod whose entries the operator reads, by the key that an entry must have."""

RESERVED_VOLUMES = frozenset(
    {"admin", "api-keys", "boot", "model", names.CERTIFICATE_VOLUME, "orca-journal", "shared-memory", "tmp"}
)
RESERVED_MOUNTS = frozenset(
    {
        "/dev/shm", "/etc/orca", "/etc/orca-admin", "/etc/orca-keys", "/etc/orca-tls", "/models/cache",
        "/models/volume", "/tmp", "/var/lib/orca",
    }
)  # fmt: skip
RESERVED_LABELS = frozenset({*names.master_labels("", ""), *names.worker_labels("", "", 0)})
"""Volumes, mounts and labels of the operator's pods; the tests compare these sets with the rendered pods."""

POD_FIELDS = {
    "affinity": "set affinity of spec.master or spec.worker, to which placement adds its own",
    "automountServiceAccountToken": "ORCA's containers get no token; mount a projected volume with a "
    "serviceAccountToken into the container that needs one",
    "serviceAccount": "set serviceAccountName",
    "terminationGracePeriodSeconds": "set spec.drainTimeoutSeconds, from which it is derived",
}
OWN = "it is the operator's: leave it out"
CONTAINER_FIELDS = {
    **dict.fromkeys(
        ("ports", "startupProbe", "livenessProbe", "readinessProbe", "terminationMessagePath"),
        OWN,
    ),
    "terminationMessagePolicy": OWN,
    "imagePullPolicy": "set spec.imagePullPolicy",
}
"""Fields that the operator needs, and what to do instead."""


def overlaid(template: dict[str, Any], settings: PodSettings) -> dict[str, Any]:
    """Return the operator's pod template with `podTemplate` merged over it."""
    override = settings.pod_template
    if override is None:
        return template
    added = override.metadata.model_dump() if override.metadata is not None else {}
    metadata = {key: {**value, **added.get(key, {})} for key, value in template["metadata"].items()}
    return {"metadata": metadata, "spec": merged(template["spec"], _without_nulls(override.spec))}


def _without_nulls(value: Any) -> Any:
    """Return a value without the fields that are null, at any depth."""
    if isinstance(value, dict):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value


def merged(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the fields of `override` merged over it."""
    result = dict(base)
    for name, value in override.items():
        before = base.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            result[name] = merged(before, value)
        elif isinstance(before, list) and isinstance(value, list) and name in MERGE_KEYS:
            result[name] = _merged_list(name, before, value)
        else:
            result[name] = value
    return result


def _merged_list(name: str, before: list[Any], override: list[Any]) -> list[Any]:
    """Return a list merged by its keys. New entries are last, but init containers first: ORCA's own runs last."""
    entries, added = list(before), []
    places = {_identity(name, entry): index for index, entry in enumerate(before)}
    for entry in override:
        index = places.get(_identity(name, entry))
        if index is None:
            added.append(entry)
        else:
            entries[index] = merged(entries[index], entry)
    return added + entries if name == "initContainers" else entries + added


def _identity(name: str, entry: Any) -> str:
    if not isinstance(entry, dict):
        return ""
    return json.dumps([entry.get(key) for key in MERGE_KEYS[name]])


def refusals(role: str, settings: PodSettings) -> Iterator[str]:
    """Yield a message for each part of `podTemplate` that would break the pods of a role, beginning with the field."""
    template = settings.pod_template
    if template is None:
        return
    path = f"spec.{role}.podTemplate"
    yield from _label_refusals(template, path)
    yield from _pod_refusals(role, template.spec, f"{path}.spec")


def _label_refusals(template: PodTemplate, path: str) -> Iterator[str]:
    for label in sorted(RESERVED_LABELS & set(template.metadata.labels if template.metadata is not None else {})):
        yield f"{path}.metadata.labels.{label} cannot be set: it is the operator's, choose another label"


def _pod_refusals(role: str, spec: Mapping[str, Any], path: str) -> Iterator[str]:
    for field, remedy in POD_FIELDS.items():
        if spec.get(field) is not None:
            yield f"{path}.{field} cannot be set: {remedy}"
    for field, key in IDENTIFIED.items():
        entries = spec.get(field)
        if entries is not None and not isinstance(entries, list):
            yield f"{path}.{field} must be a list"
            continue
        for index, entry in enumerate(entries or []):
            place = f"{path}.{field}[{index}]"
            if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
                yield f"{place}.{key} is required: a text by which the entry is merged"
            elif field == "volumes" and entry[key] in RESERVED_VOLUMES:
                yield f"{place}.name: {entry[key]} is a volume of the operator, choose another name"
            elif (field, entry[key]) in (("containers", role), ("initContainers", FETCH_CONTAINER)):
                yield from _container_refusals(role, entry, place)


def _container_refusals(role: str, container: Mapping[str, Any], path: str) -> Iterator[str]:
    is_engine = container["name"] == role
    arguments = f"append options with spec.{role}.extraArgs" if is_engine else OWN
    fields = {**CONTAINER_FIELDS, "args": arguments, "command": arguments, "image": f"set spec.{role}.image"}
    if role == names.MASTER:
        fields["lifecycle"] = OWN
    for field, remedy in fields.items():
        if container.get(field) is not None:
            yield f"{path}.{field} cannot be set: {remedy}"
    mounts = container.get("volumeMounts")
    for index, mount in enumerate(mounts if isinstance(mounts, list) else []):
        target = str(mount.get("mountPath", "")).rstrip("/") if isinstance(mount, dict) else ""
        if target in RESERVED_MOUNTS:
            yield f"{path}.volumeMounts[{index}].mountPath: {target} is a mount of the operator, choose another path"
    if is_engine:
        yield from _device_refusals(container, path)


def _device_refusals(container: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield a message for a number of GPUs other than 0, which leaves them to `resourceClaims`."""
    resources = container.get("resources")
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) if isinstance(resources, dict) else None
        if isinstance(amounts, dict) and str(amounts.get(GPU, "0")) != "0":
            yield (
                f"{path}.resources.{kind}: {GPU} is parallelism.tensorParallelSize; only 0 can be set, for GPUs of "
                "resourceClaims"
            )
