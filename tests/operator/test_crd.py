"""The CRD: the committed files are fresh, the schema is structural, and the API's own fields are all in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from orca_operator.api import INACTIVE, Part, Spec, Status, inactive_fields
from orca_operator.crd import crd, files, values_schema
from support.orcadeployments import MINIMAL, ROOT, example, merged

SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("name", files())
def test_made_files_are_fresh(name):
    assert (ROOT / name).read_text() == files()[name], "make crds"


def test_valid_for_a_current_cluster():
    kubernetes_validate.validate(crd(), "1.36", strict=True)


def nodes(schema: dict[str, Any], path: str = ""):
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def test_the_schema_is_structural_and_bounded():
    for path, node in nodes(SCHEMA):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title"} & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert node.get("default", "") is not None, path
        if path.startswith(".spec") and node["type"] == "array":
            assert "maxItems" in node, path


def test_every_field_has_a_description():
    for path, node in nodes(SCHEMA):
        if path.count(".") >= 2 and "[]" not in path.rpartition(".")[2]:
            assert node.get("description"), path


def field_names(model: type[Part]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize(("part", "model"), [("spec", Spec), ("status", Status)])
def test_the_models_are_the_schema(part, model):
    assert set(SCHEMA["properties"][part]["properties"]) == field_names(model)


def test_scale_and_columns():
    version = crd()["spec"]["versions"][0]
    assert version["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert columns[:5] == ["Model", "Ready", "Reason", "Desired", "Available"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_follow_the_schema_and_the_charts_schema(path: Path):
    resource = yaml.safe_load(path.read_text())
    jsonschema.validate(resource, {"properties": {"spec": SCHEMA["properties"]["spec"]}})
    jsonschema.validate(resource["spec"], values_schema())


def test_the_charts_schema_refuses_what_it_does_not_know():
    with pytest.raises(jsonschema.ValidationError, match="modle"):
        jsonschema.validate({**MINIMAL, "modle": {}}, values_schema())


def test_inactive_fields_are_found():
    assert inactive_fields(Spec.model_validate(example("llama-70b")["spec"])) == []
    busy = merged(
        MINIMAL,
        autoscaling={"maxReplicas": 3},
        tls={"enabled": True},
        rolloutStrategy={"type": "RollingUpdate", "maxUnavailable": 2, "maxSurge": 1},
        recoveryPolicy={"maxRestarts": 1, "restartWindowSeconds": 1, "nodeFailureGraceSeconds": 1},
        startupTimeoutSeconds=5,
    )
    assert set(inactive_fields(Spec.model_validate(busy))) == set(INACTIVE)
