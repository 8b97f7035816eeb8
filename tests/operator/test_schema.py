"""Structural schemas made from the models: descriptions with effects, bounds, no null."""

from __future__ import annotations

from orca_operator.effects import Effect
from orca_operator.schema import MAX_ITEMS, MAX_PROPERTIES, spec_schema, status_schema, structural


def test_a_description_ends_with_the_effect_of_a_change():
    fields = spec_schema()["properties"]
    assert fields["replicas"]["description"].endswith(Effect.LIVE.value)
    assert fields["model"]["properties"]["uri"]["description"].endswith(Effect.RESTARTS.value)


def test_an_optional_field_has_the_schema_of_its_value():
    made = structural({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "description": "d"}, {})
    assert made == {"type": "string", "description": "d"}


def test_references_are_resolved_and_outer_words_win():
    definitions = {"Inner": {"type": "object", "properties": {}, "description": "inner"}}
    made = structural({"$ref": "#/$defs/Inner", "description": "outer"}, definitions)
    assert made["description"] == "outer"


def test_lists_and_maps_are_bounded():
    listed = structural({"type": "array", "items": {"type": "string"}}, {})
    assert listed["maxItems"] == MAX_ITEMS
    mapped = structural({"type": "object", "additionalProperties": {"type": "string"}}, {})
    assert mapped["maxProperties"] == MAX_PROPERTIES


def test_conditions_are_told_apart_by_their_type():
    assert status_schema()["properties"]["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
