"""JSON objects that answers repeat."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from orca_master.bodies.json_values import repeatable
from orca_master.bodies.lengths import MAX_DEPTH
from pydantic import TypeAdapter, ValidationError

VALUES: TypeAdapter[dict[str, Any]] = TypeAdapter(Annotated[dict[str, Any], repeatable])


def nested(depth: int) -> Any:
    return json.loads('{"a":' * depth + "1" + "}" * depth)


@pytest.mark.parametrize("value", [{"a": [1, 0.5, None, True, "b\ud800", {"c": []}]}, nested(MAX_DEPTH)])
def test_values_are_unchanged(value):
    assert VALUES.validate_python(value) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (json.loads('{"a": [NaN]}'), "NaN and Infinity"),
        (json.loads('{"a": -Infinity}'), "NaN and Infinity"),
        (nested(MAX_DEPTH + 1), "levels deep"),
        (nested(500), "levels deep"),
    ],
)
def test_what_no_answer_can_repeat_is_refused(value, words):
    with pytest.raises(ValidationError, match=words):
        VALUES.validate_python(value)
