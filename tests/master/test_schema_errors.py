"""The place of an error in a schema."""

from __future__ import annotations

import pytest
from orca_master.text import schema_errors
from orca_master.text.grammar_process import _error_of_schema
from orca_master.text.schema_errors import locate

WRONG = {"type": "strin"}
MESSAGE = "Invalid type: strin"


def nested(part):
    return {"type": "object", "properties": {"ok": {"type": "string"}, "a/b": part}}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (WRONG, "#"),
        (nested(WRONG), "#/properties/a~1b"),
        (nested(nested(WRONG)), "#/properties/a~1b/properties/a~1b"),
        ({"type": "array", "items": WRONG}, "#/items"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "prefixItems": [WRONG]}]}, "#/anyOf/1/prefixItems/0"),
        ({"$ref": "#/$defs/x", "$defs": {"x": WRONG}}, "#/$defs/x"),
        ({"type": "object", "additionalProperties": WRONG}, "#/additionalProperties"),
        ({"type": "array", "items": {"$ref": "#/$defs/y"}, "$defs": {"y": nested(WRONG)}}, None),
    ],
)
def test_the_path_leads_to_the_smallest_wrong_part(schema, place):
    message = locate(schema, MESSAGE, _error_of_schema)
    assert message.endswith(f": {MESSAGE}")
    path = message.removesuffix(f": {MESSAGE}")
    assert path == place or (place is None and path.startswith("#/"))


def test_a_search_that_takes_long_ends_with_a_larger_part(monkeypatch):
    monkeypatch.setattr(schema_errors, "SEARCH_SECONDS", -1.0)
    assert locate(nested(WRONG), MESSAGE, _error_of_schema) == f"#: {MESSAGE}"
