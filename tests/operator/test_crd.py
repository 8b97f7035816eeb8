"""The CRD: made files are fresh, a current API server takes them, and the API's own fields are all in the schema."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from orca_operator.api import Spec
from orca_operator.api_status import Status
from orca_operator.api_types import Part
from orca_operator.crd import FILES, OVERRIDES, crd, values_schema
from orca_operator.derive_pod_api import first_sentence
from orca_operator.effects import Effect, fields_that_are_set, leaves
from orca_operator.structural import admitted
from support.crdcheck import judge
from support.orcadeployments import MINIMAL, ROOT, example, merged

SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@functools.cache
def values_validator() -> Any:
    """Return a validator of the chart's values; to check its schema takes a third of a second."""
    schema = values_schema()
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def check_values(values: dict[str, Any]) -> None:
    """Raise ValidationError, as jsonschema.validate does, for values that the chart's schema refuses."""
    error = jsonschema.exceptions.best_match(values_validator().iter_errors(values))
    if error is not None:
        raise error


@pytest.mark.parametrize("name", FILES)
def test_made_files_are_fresh(name):
    assert (ROOT / name).read_text() == FILES[name](), "make crds"


def test_valid_for_a_current_cluster():
    kubernetes_validate.validate(crd(), "1.36", strict=True)


def nodes(schema: dict[str, Any], path: str = "", pod_api: bool = True):
    """Yield every node with its path; without `pod_api`, none below the pod overrides."""
    yield path, schema
    if not pod_api and path.rpartition(".")[2] in OVERRIDES:
        return
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}", pod_api)
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]", pod_api)
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}", pod_api)


INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def test_the_schema_is_structural_and_bounded():
    for path, node in nodes(SCHEMA):
        int_or_string = node.get("x-kubernetes-int-or-string")
        assert "type" in node or int_or_string, path
        assert not {"$ref", "allOf", "oneOf", "title"} & set(node), path
        assert node.get("anyOf") == (INT_OR_STRING if int_or_string else None), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert node.get("default", "") is not None, path
        keys = node.get("x-kubernetes-list-map-keys", [])
        assert set(keys) <= set(node.get("items", {}).get("required", [])), path
    for path, node in nodes(SCHEMA, pod_api=False):
        if path.startswith(".spec") and node.get("type") == "array":
            assert "maxItems" in node, path


def test_every_field_has_a_description():
    for path, node in nodes(SCHEMA, pod_api=False):
        if path.count(".") >= 2 and not path.endswith(("[]", "{}")):
            assert node.get("description"), path


@pytest.mark.parametrize("pod", ["master", "worker"])
def test_kubectl_explains_the_pod_overrides(pod):
    settings = SCHEMA["properties"]["spec"]["properties"][pod]["properties"]
    for name in OVERRIDES:
        assert settings[name]["description"]
        entry = settings[name].get("items", settings[name])
        for field, child in entry["properties"].items():
            assert child.get("description"), f"{name}.{field}"
    assert settings["env"]["items"]["properties"]["name"]["type"] == "string"


def test_the_crd_is_at_most_200_kib():
    """kubectl's annotation of the last applied object holds 256 KiB."""
    assert len(json.dumps(crd())) <= 200 * 1024


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("yaml")])
def test_a_current_server_takes_every_copy_of_the_crd_and_the_examples(name):
    """The API server evaluates rules on defaults before the defaults of fields fill them, and estimates their cost."""
    made = yaml.load((ROOT / name).read_text(), yaml.CSafeLoader)  # in Python alone it takes seven times as long
    examples = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "examples").glob("*.yaml"))]
    verdicts = judge(made, examples)
    assert len(verdicts) >= 5
    assert [verdict.errors for verdict in verdicts] == [[]] * len(verdicts)


def test_defaults_are_written_out_and_equal_those_of_the_fields():
    for path, node in nodes(SCHEMA):
        if isinstance(node.get("default"), dict):
            assert node["default"] == admitted({}, node), path


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
    check_values(resource["spec"])


def test_the_charts_schema_refuses_what_it_does_not_know():
    with pytest.raises(jsonschema.ValidationError, match="modle"):
        check_values({**MINIMAL, "modle": {}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": [{"name": "A", "vale": "1"}]}, "vale"),
        ({"resources": {"limits": {"memory": "lots"}}}, "lots"),
        ({"labels": {"team": "a team"}}, "a team"),
    ],
)
def test_the_charts_schema_checks_pod_overrides(settings, words):
    with pytest.raises(jsonschema.ValidationError, match=words):
        check_values({**MINIMAL, "worker": settings})


def test_the_charts_schema_takes_later_fields_where_the_crd_keeps_them():
    settings = {"volumes": [{"name": "a", "future": {}}], "affinity": {"future": 1}, "labels": {"example.com/a": "b"}}
    check_values({**MINIMAL, "worker": settings})


def test_inactive_fields_are_found():
    assert fields_that_are_set(Spec.model_validate(example("llama-70b")["spec"]), Effect.NOT_YET) == []
    busy = merged(
        MINIMAL,
        rolloutStrategy={"type": "RollingUpdate", "maxUnavailable": 2, "maxSurge": 1},
        recoveryPolicy={"maxRestarts": 1, "restartWindowSeconds": 1, "nodeFailureGraceSeconds": 1},
        startupTimeoutSeconds=5,
    )
    inactive = {leaf.wire for leaf in leaves(Spec) if leaf.effect is Effect.NOT_YET}
    assert set(fields_that_are_set(Spec.model_validate(busy), Effect.NOT_YET)) == inactive


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Name of it. Must be unique.", "Name of it"),
        ("Some field, e.g. Kubernetes. More.", "Some field, e.g. Kubernetes"),
        ("One line\n\nAnother paragraph.", "One line"),
        ("From metadata.name and status.podIP. See there.", "From metadata.name and status.podIP"),
    ],
)
def test_descriptions_are_first_sentences(text, sentence):
    assert first_sentence(text) == sentence
