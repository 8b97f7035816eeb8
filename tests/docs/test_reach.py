"""The InferencePool of docs/how-to/reach.md selects masters' pods and their port, in fields of the published API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError, validate
from orca_operator import names
from support.orcadeployments import MINIMAL, context

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "reach.md"
PORT = {"type": "object", "required": ["number"], "additionalProperties": False,
        "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 65535}}}  # fmt: skip
NAME = {"type": "string", "minLength": 1, "maxLength": 253}
POOL: dict[str, Any] = {
    "type": "object", "required": ["selector", "targetPorts", "endpointPickerRef"], "additionalProperties": False,
    "properties": {
        "selector": {"type": "object", "required": ["matchLabels"], "additionalProperties": False,
                     "properties": {"matchLabels": {"additionalProperties": {"type": "string", "maxLength": 63}}}},
        "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": PORT},
        "appProtocol": {"enum": ["http", "kubernetes.io/h2c"]},
        "endpointPickerRef": {
            "type": "object", "required": ["name"], "additionalProperties": False,
            "properties": {"group": {"type": "string"}, "kind": NAME, "name": NAME, "port": PORT,
                           "failureMode": {"enum": ["FailOpen", "FailClose"]}}},
    },
}  # fmt: skip
"""InferencePoolSpec, v1, on 23 November 2026: https://gateway-api-inference-extension.sigs.k8s.io/reference/spec"""


def manifests() -> dict[str, dict[str, Any]]:
    """Return the manifests of the page by kind and name."""
    blocks = PAGE.read_text().split("\n    apiVersion: ")[1:]
    found = {}
    for block in blocks:
        lines = ["apiVersion: " + block.splitlines()[0]]
        for line in block.splitlines()[1:]:
            if not line.startswith("    "):
                break
            lines.append(line.removeprefix("    "))
        manifest = yaml.safe_load("\n".join(lines))
        found[f"{manifest['kind']}/{manifest['metadata']['name']}"] = manifest
    return found


def test_the_pool_selects_the_masters_and_their_port():
    pool = manifests()["InferencePool/demo"]
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    validate(pool["spec"], POOL)
    demo = context(MINIMAL)
    selected = pool["spec"]["selector"]["matchLabels"].items()
    assert selected <= names.master_labels(demo.name, demo.revision).items()
    assert not selected <= names.worker_labels(demo.name, demo.revision, 0).items()
    assert pool["spec"]["targetPorts"] == [{"number": names.API_PORT}]


def test_the_route_leads_to_the_pool():
    found = manifests()
    (rule,) = found["HTTPRoute/demo-pool"]["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    group = found["InferencePool/demo"]["apiVersion"].split("/")[0]
    assert backend == {"group": group, "kind": "InferencePool", "name": "demo"}


def test_the_schema_rejects_the_fields_of_older_versions():
    with pytest.raises(ValidationError):
        validate({"selector": {"app": "demo"}, "targetPortNumber": 8000, "extensionRef": {"name": "demo-epp"}}, POOL)
