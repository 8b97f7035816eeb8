"""Generates the CustomResourceDefinition and docs/api.md from the API's models: `python -m orca_operator.crd DIR`.

`make crds` writes crds/, the page, and the charts' copies and schema; `make crds-legacy` the CRD without CEL rules, for
servers before 1.25, which reject the rules under server-side apply. A test compares the committed files with these.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from orca_contract.reasons import DESCRIPTIONS

from orca_operator.api import Spec
from orca_operator.conditions import CONDITIONS
from orca_operator.derive_pod_api import derive
from orca_operator.effects import Effect, leaves
from orca_operator.names import GROUP, KIND, PLURAL, VERSION
from orca_operator.schema import spec_schema, status_schema
from orca_operator.structural import INT_OR_STRING, PRESERVE
from orca_operator.validation import RULES, where

CLOSED_KEYS = (
    "description", "type", "default", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "required",
    "maxItems", "maxProperties", "anyOf",
)  # fmt: skip
"""Keys that structural schemas and plain JSON schema have in common."""
POD_API = "operator/orca_operator/pod_api.json"
OVERRIDES = frozenset({"affinity", "env", "initContainers", "tolerations", "volumeMounts", "volumes"})
"""Fields of the pod API."""
UNFOLDED = OVERRIDES | {"behavior"}
"""Fields with types of Kubernetes' APIs: docs/api.md omits their subfields, which `kubectl explain` shows."""


def crd(with_rules: bool = True) -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    spec, status = copy.deepcopy(spec_schema()), status_schema()
    whole: dict[str, Any] = {
        "description": "A model served by an ORCA engine: one engine master and one StatefulSet per inter-layer "
        "partition.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    if with_rules:
        for rule in RULES:
            target = whole if rule.path is None else spec
            for name in filter(None, (rule.path or "").split(".")):
                target = target["properties"][name]
            validation = {"rule": rule.cel, "message": f"{where(rule)} {rule.message}"}
            target.setdefault("x-kubernetes-validations", []).append(validation)
    columns = [
        ("Model", "string", ".spec.model.uri", 0),
        ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
        ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
        ("Desired", "integer", ".spec.replicas", 0),
        ("Available", "integer", ".status.availableReplicas", 0),
        ("TPxPP", "string", ".status.topology", 1),
        ("Restarts", "integer", ".status.restarts", 1),
        ("URL", "string", ".status.url", 1),
        ("Age", "date", ".metadata.creationTimestamp", 0),
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": whole},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority}
            for name, kind, path, priority in columns
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "orca"},
            # In every copy: helm must never delete the CRD, because that deletes every OrcaDeployment.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["orca"],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


def page() -> str:
    """Return docs/api.md."""
    whole = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    lines = [
        "# The OrcaDeployment API",
        "",
        "Generated from `operator/orca_operator/api.py` by `make crds`. Group `orca-serving.io`, version `v1alpha1`, "
        "short name `orca`.",
        "",
    ]
    for part in ("spec", "status"):
        lines += [f"## {part}", "", "| field | type | default | |", "|---|---|---|---|"]
        lines += [
            f"| `{path}` | {_type(entry)} | {_default(entry)} | {entry.get('description', '')} |"
            for path, entry in _fields(whole["properties"][part])
        ]
        lines.append("")
    lines += ["## Rules over several fields", ""]
    lines += [f"- `{where(rule)}` {rule.message}." for rule in RULES]
    lines += ["", "## Accepted, but not implemented yet", ""]
    lines += [f"- `{leaf.wire}`" for leaf in leaves(Spec) if leaf.effect is Effect.NOT_YET]
    lines.append("- `autoscaling.keda.idleReplicaCount`: `autoscaling.minReplicas: 0` scales to zero")
    lines += ["", "While one of these fields is set, the condition `FullyApplied` is False and names it.", ""]
    lines += ["## Conditions", "", "| type | True when |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in CONDITIONS.items()]
    lines += ["", "## Reasons of `Ready`", "", "| reason | meaning |", "|---|---|"]
    lines += [f"| `{reason.value}` | {text} |" for reason, text in DESCRIPTIONS.items()]
    return "\n".join(lines) + "\n"


def _fields(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, entry in schema.get("properties", {}).items():
        yield f"{prefix}{name}", entry
        if name not in UNFOLDED:
            yield from _fields(entry, f"{prefix}{name}.")
            yield from _fields(entry.get("items", {}), f"{prefix}{name}[].")


def _type(entry: dict[str, Any]) -> str:
    if "enum" in entry:
        return " \\| ".join(f"`{value}`" for value in entry["enum"])
    text = "integer or string" if INT_OR_STRING in entry else str(entry.get("type", "object"))
    if "minimum" in entry:
        text += f", {entry['minimum']} to {entry['maximum']}" if "maximum" in entry else f", from {entry['minimum']}"
    return text


def _default(entry: dict[str, Any]) -> str:
    default = entry.get("default")
    return "" if default in (None, {}, [], "") or isinstance(default, dict) else f"`{default}`"


def values_schema() -> dict[str, Any]:
    """Return values.schema.json of charts/orca-model: the fields of the spec and the chart's own values."""
    values = _closed(spec_schema())
    values["properties"] |= {
        "nameOverride": {"type": "string"},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "global": {"type": "object"},
        "enabled": {"type": "boolean"},  # a condition of a parent chart, which helm passes on
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **values}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a structural schema as plain JSON schema that rejects unknown fields, which an API server would drop."""
    closed = {key: value for key, value in schema.items() if key in CLOSED_KEYS}
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    if "additionalProperties" in schema:
        closed["additionalProperties"] = _closed(schema["additionalProperties"])
    if "properties" in schema:
        closed["properties"] = {name: _closed(entry) for name, entry in schema["properties"].items()}
        if not schema.get(PRESERVE):
            closed["additionalProperties"] = False
    return closed


FILES: dict[str, Callable[[], str]] = {
    POD_API: derive,  # the other files are derived from this one
    "crds/orcadeployment.yaml": lambda: dump(crd()),
    "charts/orca/files/orcadeployment.yaml": lambda: dump(crd()),
    "charts/orca/files/orcadeployment-legacy.yaml": lambda: dump(crd(with_rules=False)),
    "charts/orca-model/values.schema.json": lambda: json.dumps(values_schema(), indent=1) + "\n",
    "docs/api.md": page,
}
"""What makes the content of each generated file, by the file's path below the repository's root."""


def main(arguments: list[str]) -> int:
    """Write FILES below DIR, or with `--legacy FILE` the CRD without rules alone."""
    if arguments[:1] == ["--legacy"]:
        Path(arguments[1]).write_text(dump(crd(with_rules=False)))
        return 0
    for name, content in FILES.items():
        path = Path(arguments[0]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content())
    return 0


def dump(manifest: dict[str, Any]) -> str:
    """Return YAML with a comment that names its source."""
    repeated = json.loads(json.dumps(manifest))  # else YAML would write shared parts as aliases
    return "# Generated by `make crds` from operator/orca_operator/api.py\n" + yaml.safe_dump(
        repeated, sort_keys=False, width=120
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
