"""Structural schemas of Kubernetes' types that an OrcaDeployment contains (pod_api.json; derive_pod_api.py).

All but `Behavior`, the scaling policies of an HPA, are types of the pod API. They annotate fields of the spec's models:
plain dictionaries with Kubernetes' schema in the CRD. `validation.parse` checks a spec against the same schema.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Annotated, Any

from pydantic import WithJsonSchema

REFERENCE = "x-pod-api"
"""Placeholder for a schema of this module, which `schema.py` replaces."""
OPEN = frozenset({"Affinity", "Container", "Volume"})
"""Definitions below which unknown fields are kept, because later versions of Kubernetes add fields there."""
KEYS: dict[str, list[str]] = {
    "Container": ["name"],
    "EnvVar": ["name"],
    "Volume": ["name"],
    "VolumeMount": ["mountPath"],
}
"""Keys that identify the entries of a list, as in the pod API."""
ENVIRONMENT_NAME = r"^([-_a-zA-Z][-._a-zA-Z0-9]*|[.][-_a-zA-Z0-9][-._a-zA-Z0-9]*)$"
"""Names that every server since 1.20 accepts; since 1.32 Kubernetes accepts almost any printable ASCII."""
DESCRIBED_LEVELS = 3
DESCRIBED_LEVELS_OPEN = 2
"""Deeper fields have no description, in the large definitions of OPEN: the CRD must stay below 200 KiB."""

Affinity = Annotated[dict[str, Any], WithJsonSchema({REFERENCE: "Affinity"})]
Behavior = Annotated[dict[str, Any], WithJsonSchema({REFERENCE: "HorizontalPodAutoscalerBehavior"})]
Container = Annotated[dict[str, Any], WithJsonSchema({REFERENCE: "Container"})]
EnvVar = Annotated[dict[str, Any], WithJsonSchema({REFERENCE: "EnvVar"})]
Quantity = Annotated[Any, WithJsonSchema({REFERENCE: "Quantity"})]
Toleration = Annotated[dict[str, Any], WithJsonSchema({REFERENCE: "Toleration"})]
Volume = Annotated[dict[str, Any], WithJsonSchema({REFERENCE: "Volume"})]
VolumeMount = Annotated[dict[str, Any], WithJsonSchema({REFERENCE: "VolumeMount"})]


def schema(name: str) -> dict[str, Any]:
    """Return a fresh structural schema of a definition, references resolved."""
    return _resolved({"$ref": name}, name in OPEN, DESCRIBED_LEVELS_OPEN if name in OPEN else DESCRIBED_LEVELS)


@functools.cache
def _definitions() -> dict[str, dict[str, Any]]:
    text = (resources.files("orca_operator") / "pod_api.json").read_text()
    definitions: dict[str, dict[str, Any]] = json.loads(text)
    return definitions


def _resolved(node: dict[str, Any], keep_unknown: bool, levels: int) -> dict[str, Any]:
    """Resolve references below `node`; descriptions end `levels` fields below."""
    if "$ref" in node:
        outer = {key: value for key, value in node.items() if key != "$ref"}
        return _resolved(_definitions()[node["$ref"]] | outer, keep_unknown, levels)
    dropped = {"x-kubernetes-list-map-keys"} | ({"description"} if levels < 0 else set())
    resolved = {key: value for key, value in node.items() if key not in dropped}
    if "items" in node:
        resolved["items"] = _resolved(node["items"], keep_unknown, levels)
        keys = node.get("x-kubernetes-list-map-keys", [])
        if keys and set(keys) <= set(resolved["items"].get("required", [])):  # structural schemas require this
            resolved |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    if "properties" in node:
        fields = node["properties"].items()
        resolved["properties"] = {name: _resolved(child, keep_unknown, levels - 1) for name, child in fields}
    if "additionalProperties" in node:
        resolved["additionalProperties"] = _resolved(node["additionalProperties"], keep_unknown, levels)
    elif node.get("type") == "object" and (keep_unknown or "properties" not in node):
        resolved["x-kubernetes-preserve-unknown-fields"] = True
    return resolved
