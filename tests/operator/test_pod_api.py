"""The pod API as structural schemas: resolved, and open where later versions of Kubernetes add fields."""

from __future__ import annotations

import pytest
from orca_operator import pod_api
from orca_operator.structural import PRESERVE


@pytest.mark.parametrize("name", sorted({"Affinity", "Container", "EnvVar", "Toleration", "Volume", "VolumeMount"}))
def test_definitions_are_resolved(name):
    schema = pod_api.schema(name)
    assert "$ref" not in str(schema)
    assert bool(schema.get(PRESERVE)) == (name in pod_api.OPEN)


def test_a_schema_may_be_changed_by_its_caller():
    pod_api.schema("Volume")["properties"].clear()
    assert pod_api.schema("Volume")["properties"]


def test_lists_are_told_apart_by_required_keys():
    for name, keys in pod_api.KEYS.items():
        assert set(keys) <= set(pod_api.schema(name)["required"])


def test_descriptions_end_a_few_levels_down():
    container = pod_api.schema("Container")
    assert container["properties"]["livenessProbe"]["description"]
    http = container["properties"]["livenessProbe"]["properties"]["httpGet"]["properties"]
    assert "description" not in http["httpHeaders"]["items"]["properties"]["name"]
