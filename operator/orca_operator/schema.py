"""Structural schemas of spec and status, derived from the models in api.py and api_status.py.

The CRD, the chart's values.schema.json and the operator's own check of a spec (validation.py) all use them.
"""

from __future__ import annotations

import functools
from typing import Any

from orca_operator import pod_api
from orca_operator.api import Spec
from orca_operator.api_status import Status
from orca_operator.effects import leaves
from orca_operator.structural import INT_OR_STRING, PRESERVE, defaulted

COPIED = (
    "description", "type", "default", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "required",
    INT_OR_STRING, PRESERVE,
)  # fmt: skip
MAX_ITEMS = 64
MAX_PROPERTIES = 64
"""Bounds keep the API server's estimate of the rules' cost low (CEL cost limits)."""


@functools.cache
def spec_schema() -> dict[str, Any]:
    """Return the schema of `spec`; callers must not change it."""
    schema = _model_schema(Spec)
    for leaf in leaves(Spec):
        field = schema
        for name in leaf.wire.split("."):
            field = field["properties"][name]
        field["description"] += f" {leaf.effect.value}"
    return schema


def status_schema() -> dict[str, Any]:
    """Return the schema of `status`."""
    status = _model_schema(Status)
    status["properties"]["conditions"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return status


def _model_schema(model: type[Spec] | type[Status]) -> dict[str, Any]:
    raw = model.model_json_schema(by_alias=True)
    return structural(raw, raw.get("$defs", {}))


def structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a pydantic JSON schema as a structural schema of the Kubernetes API."""
    if "$ref" in schema:
        outer = {key: value for key, value in schema.items() if key != "$ref"}
        return structural(definitions[schema["$ref"].rpartition("/")[2]] | outer, definitions)
    if "anyOf" in schema and INT_OR_STRING not in schema:  # optional: null is left out
        (only,) = (entry for entry in schema["anyOf"] if entry.get("type") != "null")
        outer = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        return structural(only | outer, definitions)
    converted = {key: schema[key] for key in COPIED if key in schema}
    if INT_OR_STRING in schema:
        converted["anyOf"] = schema["anyOf"]
    if pod_api.REFERENCE in schema:
        converted = pod_api.schema(schema[pod_api.REFERENCE]) | converted
    elif schema.get("type") == "array":
        converted |= _list(schema, definitions)
    elif "properties" in schema:
        fields = schema["properties"].items()
        converted["properties"] = {name: structural(entry, definitions) for name, entry in fields}
    elif schema.get("type") == "object" and PRESERVE not in schema:
        values = structural(schema["additionalProperties"], definitions)
        converted |= {"additionalProperties": values, "maxProperties": MAX_PROPERTIES}
    return _with_whole_default(converted)


def _list(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    items = schema["items"]
    converted: dict[str, Any] = {"items": structural(items, definitions)}
    core = items.get(pod_api.REFERENCE)
    most = 1000 if "properties" in converted["items"] and core is None else MAX_ITEMS
    converted["maxItems"] = schema.get("maxItems", most)
    if core in pod_api.KEYS:
        converted |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": pod_api.KEYS[core]}
    return converted


def _with_whole_default(node: dict[str, Any]) -> dict[str, Any]:
    """Expand the default of an object: the API server checks a default against the object's rules before the defaults
    of its fields fill it. Drop empty lists and strings as defaults, which mean the same as an absent value."""
    default = node.get("default")
    if isinstance(default, dict):
        return node | {"default": defaulted({}, node)}
    if default in ([], ""):
        del node["default"]
    return node
