"""The CustomResourceDefinition and docs/api.md, made from the API's models: `python -m orca_operator.crd DIR`.

`make crds` writes crds/, the page, and the charts' copies and schema; `make crds-legacy` the CRD without CEL rules, for
servers before 1.25, which refuse the rules under server-side apply. A test holds the committed files against this.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from orca_operator.api import INACTIVE, Spec, Status
from orca_operator.diagnose import DESCRIPTIONS
from orca_operator.names import GROUP, KIND, PLURAL, VERSION
from orca_operator.status import CONDITIONS
from orca_operator.validation import RULES, where

KEPT = (
    "description", "type", "default", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "required",
)  # fmt: skip
MAX_ITEMS = 64
MAX_PROPERTIES = 64
"""Bounds keep the API server's estimate of the rules' cost low (CEL cost limits)."""


def structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Returns a pydantic JSON schema as a structural schema of the Kubernetes API."""
    if "$ref" in schema:
        outer = {key: value for key, value in schema.items() if key != "$ref"}
        return structural(definitions[schema["$ref"].rpartition("/")[2]] | outer, definitions)
    if "anyOf" in schema:  # optional: the null is left out
        (only,) = (entry for entry in schema["anyOf"] if entry.get("type") != "null")
        outer = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        return structural(only | outer, definitions)
    found: dict[str, Any] = {key: schema[key] for key in KEPT if key in schema}
    if isinstance(found.get("default"), dict):  # the defaults of its fields fill it
        found["default"] = {}
    elif found.get("default") in ([], ""):
        del found["default"]
    if schema.get("type") == "array":
        found["items"] = structural(schema["items"], definitions)
        found["maxItems"] = 1000 if "properties" in found["items"] else MAX_ITEMS
    if "properties" in schema:
        found["properties"] = {name: structural(entry, definitions) for name, entry in schema["properties"].items()}
    elif schema.get("type") == "object":
        values = schema.get("additionalProperties")
        if isinstance(values, dict) and values.get("type") == "string":
            found |= {"additionalProperties": {"type": "string"}, "maxProperties": MAX_PROPERTIES}
        else:
            found["x-kubernetes-preserve-unknown-fields"] = True
    return found


def crd(with_rules: bool = True) -> dict[str, Any]:
    """Returns the CustomResourceDefinition."""
    spec, status = _schema(Spec), _schema(Status)
    _quantities(spec)
    status["properties"]["conditions"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
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
            if rule.path:
                target = spec["properties"][rule.path]
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
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/name": "orca"}},
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


def _schema(model: type[Spec] | type[Status]) -> dict[str, Any]:
    raw = model.model_json_schema(by_alias=True)
    return structural(raw, raw.get("$defs", {}))


def _quantities(spec: dict[str, Any]) -> None:
    """Resource maps hold numbers or strings, as everywhere in Kubernetes."""
    for pod in ("master", "worker"):
        for name in ("requests", "limits"):
            entry = spec["properties"][pod]["properties"]["resources"]["properties"][name]
            entry.pop("x-kubernetes-preserve-unknown-fields")
            entry["additionalProperties"] = {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "x-kubernetes-int-or-string": True,
            }


def page() -> str:
    """Returns docs/api.md."""
    whole = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    lines = [
        "# The OrcaDeployment API",
        "",
        "Made from `operator/orca_operator/api.py` by `make crds`. Group `orca-serving.io`, version `v1alpha1`, short "
        "name `orca`.",
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
    lines += ["", "## Accepted, and not acted on yet", ""]
    lines += [f"- `{path}`" for path in INACTIVE]
    lines += ["", "While one of them is set, the condition `FullyApplied` is False and names it.", ""]
    lines += ["## Conditions", "", "| type | True when |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in CONDITIONS.items()]
    lines += ["", "## Reasons of `Ready`", "", "| reason | meaning |", "|---|---|"]
    lines += [f"| `{reason.value}` | {text} |" for reason, text in DESCRIPTIONS.items()]
    return "\n".join(lines) + "\n"


def _fields(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, entry in schema.get("properties", {}).items():
        yield f"{prefix}{name}", entry
        yield from _fields(entry, f"{prefix}{name}.")
        if "items" in entry:
            yield from _fields(entry["items"], f"{prefix}{name}[].")


def _type(entry: dict[str, Any]) -> str:
    if "enum" in entry:
        return " \\| ".join(f"`{value}`" for value in entry["enum"])
    found = str(entry.get("type", "object"))
    if "minimum" in entry:
        found += f", {entry['minimum']} to {entry['maximum']}" if "maximum" in entry else f", from {entry['minimum']}"
    return found


def _default(entry: dict[str, Any]) -> str:
    default = entry.get("default")
    return "" if default in (None, {}, [], "") or isinstance(default, dict) else f"`{default}`"


def values_schema() -> dict[str, Any]:
    """Returns values.schema.json of charts/orca-model: its values are the fields of the spec, and two of its own."""
    values = _closed(_schema(Spec))
    values["properties"] |= {
        "nameOverride": {"type": "string"},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "global": {"type": "object"},
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **values}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A structural schema as plain JSON schema that refuses unknown fields."""
    found = {key: value for key, value in schema.items() if key in KEPT}
    if "items" in schema:
        found["items"] = _closed(schema["items"])
    if "properties" in schema:
        found["properties"] = {name: _closed(entry) for name, entry in schema["properties"].items()}
        found["additionalProperties"] = False
    return found


def files() -> dict[str, str]:
    """Returns everything that is made from the API, by path below the repository's root."""
    return {
        "crds/orcadeployment.yaml": dump(crd()),
        "charts/orca/files/orcadeployment.yaml": dump(crd()),
        "charts/orca/files/orcadeployment-legacy.yaml": dump(crd(with_rules=False)),
        "charts/orca-model/values.schema.json": json.dumps(values_schema(), indent=1) + "\n",
        "docs/api.md": page(),
    }


def main(arguments: list[str]) -> int:
    """Writes `files` below DIR, or with `--legacy FILE` the CRD without rules alone."""
    if arguments[:1] == ["--legacy"]:
        Path(arguments[1]).write_text(dump(crd(with_rules=False)))
        return 0
    for name, text in files().items():
        path = Path(arguments[0]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def dump(manifest: dict[str, Any]) -> str:
    """Returns YAML with the note where it comes from."""
    return "# Made by `make crds` from operator/orca_operator/api.py\n" + yaml.safe_dump(
        manifest, sort_keys=False, width=120
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
