"""What an API server does with a value under a schema; test_validation.py compares with the server's own code."""

from __future__ import annotations

import pytest
from orca_operator.structural import PRESERVE, admitted, problems

SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 2, "pattern": "^[a-z]+$"},
        "count": {"type": "integer", "minimum": 1, "maximum": 5, "default": 3},
        "mode": {"type": "string", "enum": ["a", "b"]},
        "inner": {"type": "object", "properties": {"deep": {"type": "boolean", "default": True}}},
        "open": {"type": "object", PRESERVE: True},
        "list": {
            "type": "array",
            "items": {"type": "object", "required": ["key"], "properties": {"key": {"type": "string"}}},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["key"],
        },
    },
}


def test_unknown_fields_and_nulls_go_and_defaults_come():
    value = {"name": "ab", "unknown": 1, "mode": None, "inner": {"other": 1}, "open": {"kept": {"as": "is"}}}
    assert admitted(value, SCHEMA) == {
        "name": "ab",
        "count": 3,
        "inner": {"deep": True},
        "open": {"kept": {"as": "is"}},
    }
    assert value["unknown"] == 1, "the value itself stays as it is"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": None}, "spec.name: is required"),
        ({"name": 1}, "spec.name: must be of type string, got 1"),
        ({"name": "A"}, "spec.name: must match ^[a-z]+$"),
        ({"count": 0}, "spec.count: must be at least 1, got 0"),
        ({"count": 6}, "spec.count: must be at most 5, got 6"),
        ({"count": 1.5}, "spec.count: must be of type integer"),
        ({"count": True}, "spec.count: must be of type integer"),
        ({"mode": "c"}, "spec.mode: must be one of a, b"),
        ({"list": [{"key": "x"}, {"key": "x"}]}, "spec.list"),
        ({"list": [{}]}, "spec.list[0].key: is required"),
    ],
)
def test_problems_begin_with_the_field(changes, words):
    found = list(problems(admitted({"name": "ab", **changes}, SCHEMA), SCHEMA, "spec"))
    assert any(problem.startswith(words) for problem in found), found


def test_a_valid_value_has_no_problem():
    value = admitted({"name": "ab", "list": [{"key": "x"}, {"key": "y"}]}, SCHEMA)
    assert list(problems(value, SCHEMA, "spec")) == []
