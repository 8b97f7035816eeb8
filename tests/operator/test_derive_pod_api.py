"""pod_api.json is derived from the published schemas with the tables of derive_pod_api.py."""

from __future__ import annotations

import json
from pathlib import Path

from orca_operator import derive_pod_api
from orca_operator.derive_pod_api import ADDED, ROOTS

STORED = json.loads((Path(derive_pod_api.__file__).parent / "pod_api.json").read_text())


def test_every_root_is_derived():
    assert set(ROOTS) <= set(STORED)


def test_every_entry_of_the_tables_is_in_the_result():
    """A field that Kubernetes renames would silently lose its rule."""
    for (definition, field), schema in ADDED.items():
        stored = STORED[definition]["properties"][field]
        assert schema.items() <= stored.items(), f"{definition}.{field}"


def test_references_lead_somewhere():
    def references(node):
        if isinstance(node, dict):
            if "$ref" in node:
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    assert set(references(STORED)) <= set(STORED)
