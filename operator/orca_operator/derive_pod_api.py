"""Derives pod_api.json from the OpenAPI that Kubernetes publishes; part of `make crds`, never run by the operator.

The published schemas come with the development dependency kubernetes-validate. They specify names, types and required
fields; constraints that they give only in prose (enums, name syntax) are added from the tables below. A definition
keeps its references to other definitions; `pod_api.schema` resolves them.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

from orca_operator import pod_api

KUBERNETES = "1.36"
"""Version of the schemas; unknown fields are kept where later versions are likely to add fields."""
ROOTS = (
    "Affinity",
    "Container",
    "EnvVar",
    "HorizontalPodAutoscalerBehavior",
    "Toleration",
    "Volume",
    "VolumeMount",
)
DNS_LABEL: dict[str, Any] = {"pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
ENVIRONMENT_NAME: dict[str, Any] = {"pattern": pod_api.ENVIRONMENT_NAME}
PORT: dict[str, Any] = {"minimum": 1, "maximum": 65535}
WEIGHT: dict[str, Any] = {"minimum": 1, "maximum": 100}
NOT_NEGATIVE = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$"
QUANTITY: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": NOT_NEGATIVE,
    "minimum": 0,
}
INT_OR_STRING: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
}
ADDED: dict[tuple[str, str], dict[str, Any]] = {
    ("Container", "imagePullPolicy"): {"enum": ["", "Always", "IfNotPresent", "Never"]},
    ("AppArmorProfile", "type"): {"enum": ["Localhost", "RuntimeDefault", "Unconfined"]},
    ("Container", "name"): DNS_LABEL,
    ("Container", "restartPolicy"): {"enum": ["Always", "OnFailure", "Never"]},
    ("Container", "terminationMessagePolicy"): {"enum": ["", "File", "FallbackToLogsOnError"]},
    ("ContainerPort", "containerPort"): PORT,
    ("ContainerPort", "protocol"): {"enum": ["", "TCP", "UDP", "SCTP"]},
    ("ContainerResizePolicy", "restartPolicy"): {"enum": ["NotRequired", "RestartContainer"]},
    ("EnvVar", "name"): ENVIRONMENT_NAME,
    ("HPAScalingPolicy", "periodSeconds"): {"minimum": 1, "maximum": 1800},
    ("HPAScalingPolicy", "type"): {"enum": ["Pods", "Percent"]},
    ("HPAScalingPolicy", "value"): {"minimum": 1},
    ("HPAScalingRules", "policies"): {"maxItems": 64},
    ("HPAScalingRules", "selectPolicy"): {"enum": ["Max", "Min", "Disabled"]},
    ("HPAScalingRules", "stabilizationWindowSeconds"): {"minimum": 0, "maximum": 3600},
    ("HTTPGetAction", "scheme"): {"enum": ["", "HTTP", "HTTPS"]},
    ("HostPathVolumeSource", "type"): {
        "enum": ["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"]
    },
    ("ImageVolumeSource", "pullPolicy"): {"enum": ["", "Always", "IfNotPresent", "Never"]},
    ("LabelSelectorRequirement", "operator"): {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
    ("NodeSelectorRequirement", "operator"): {"enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]},
    ("PersistentVolumeClaimSpec", "accessModes"): {
        "items": {"type": "string", "enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]}
    },
    ("PreferredSchedulingTerm", "weight"): WEIGHT,
    ("SeccompProfile", "type"): {"enum": ["Localhost", "RuntimeDefault", "Unconfined"]},
    ("SecurityContext", "procMount"): {"enum": ["", "Default", "Unmasked"]},
    ("Toleration", "effect"): {"enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"]},
    ("Toleration", "operator"): {"enum": ["", "Exists", "Equal", "Lt", "Gt"]},
    ("Volume", "name"): DNS_LABEL,
    ("VolumeMount", "mountPath"): {"minLength": 1},
    ("VolumeMount", "mountPropagation"): {"enum": ["None", "HostToContainer", "Bidirectional"]},
    ("VolumeMount", "name"): {"minLength": 1},
    ("VolumeMount", "recursiveReadOnly"): {"enum": ["Disabled", "IfPossible", "Enabled"]},
    ("WeightedPodAffinityTerm", "weight"): WEIGHT,
}
"""By definition and field: checks of the API server beyond the published types."""
SPECIAL = {"Quantity": QUANTITY, "IntOrString": INT_OR_STRING, "Time": {"type": "string"}}


def derive() -> str:
    """Return pod_api.json: a definition per line, by the short names of the pod API."""
    published = _published()
    definitions: dict[str, dict[str, Any]] = {}
    pending = list(ROOTS)
    while pending:
        name = pending.pop()
        if name not in definitions:
            definitions[name] = SPECIAL.get(name) or _definition(name, published[name])
            pending += _references(definitions[name])
    lines = [f" {json.dumps(name)}: {json.dumps(definitions[name])}" for name in sorted(definitions)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def first_sentence(text: str) -> str:
    """Return the first sentence of a description without its full stop: one line of `kubectl explain`."""
    paragraph = text.strip().partition("\n")[0]
    sentence = re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s+(?=[A-Z\"'(])", paragraph, maxsplit=1)[0]
    return sentence.strip().removesuffix(".")


def _published() -> dict[str, dict[str, Any]]:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    packages = (".api.core.v1.", ".api.autoscaling.v2.", ".apimachinery.")
    return {
        name.rpartition(".")[2]: entry for name, entry in definitions.items() if any(part in name for part in packages)
    }


def _definition(name: str, published: dict[str, Any]) -> dict[str, Any]:
    converted = _converted(published)
    for field, entry in converted.get("properties", {}).items():
        entry.update(ADDED.get((name, field), {}))
    return converted


def _converted(entry: dict[str, Any]) -> dict[str, Any]:
    """Convert one node: drop nulls, as the API server does, and shorten references; keep the keys of lists."""
    converted: dict[str, Any] = {}
    if "description" in entry:
        converted["description"] = first_sentence(entry["description"])
    if "$ref" in entry:
        return converted | {"$ref": entry["$ref"].rpartition(".")[2]}
    kind = entry.get("type", "object")
    converted["type"] = kind if isinstance(kind, str) else next(part for part in kind if part != "null")
    if "required" in entry:
        converted["required"] = entry["required"]
    if "properties" in entry:
        converted["properties"] = {name: _converted(child) for name, child in entry["properties"].items()}
    if isinstance(entry.get("additionalProperties"), dict):
        converted["additionalProperties"] = _converted(entry["additionalProperties"])
    if "items" in entry:
        converted["items"] = _converted(entry["items"])
    if entry.get("x-kubernetes-list-type") == "map":
        converted["x-kubernetes-list-map-keys"] = entry["x-kubernetes-list-map-keys"]
    return converted


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [name for child in node.values() for name in _references(child)]
    return [name for child in node for name in _references(child)] if isinstance(node, list) else []
