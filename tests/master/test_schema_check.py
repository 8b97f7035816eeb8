"""`misread`: schemas that llguidance would enforce differently are refused with the place; the others are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.grammar_process import answer
from support.grammars import ll_tokenizer, matcher, tokens_of

TOKENIZER = ll_tokenizer(300)


def refusal(schema: Any) -> str:
    return answer(TOKENIZER, {"kind": "json", "text": json.dumps(schema), "reasoning": ""}).get("error", "")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"enum": [1, 1234567890123456789]}, "enum: 1234567890123456789 cannot be"),
        ({"const": {"id": [9007199254740993]}}, "const: 9007199254740993 cannot be"),
        ({"const": 10**400}, "const: 1000"),
        ({"type": "array", "items": [{"enum": [9007199254740993]}]}, None),
        ({"type": "string", "pattern": r'^[^"]*$'}, 'pattern: [^"] would also match "'),
        ({"type": "string", "pattern": r"^[a-z]+[^/\\]$"}, r"pattern: [^/\\] would also match \, which"),
        ({"type": "object", "patternProperties": {'^[^"]+$': {}}}, 'pattern: [^"] would also match "'),
        (
            {"type": "object", "properties": {"ab": {}}, "patternProperties": {"^a": {"maxLength": 2}}},
            "patternProperties: a pattern matches 'ab' of properties",
        ),
    ],
)
def test_what_would_be_enforced_differently_is_refused_with_its_place(part, expected):
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": part}}}
    error, place = refusal(schema), "#/properties/x/items"
    if expected is None:
        place, expected = f"{place}/items/0", "enum: 9007199254740993 cannot be"
    assert error.startswith(f"{place}: {expected}"), error
    referring = {"$ref": "#/components/schemas/a~1b", "components": {"schemas": {"a/b": schema}}}
    assert refusal(referring).startswith(f"#/components/schemas/a~1b{place[1:]}: {expected}")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"enum": [9007199254740992, 2**60, -5, 1.5, True, "9007199254740993"]}, "1152921504606846976"),
        ({"type": "integer", "minimum": -(2**53), "maximum": 5}, "-7"),
        ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, "7"),
        ({"type": "object", "properties": {"ab": {}}, "patternProperties": {"^x-\\p{L}+$": {}}}, '{"ab":1}'),
        ({"type": "string", "pattern": r"^[^a-z]+$"}, '"AB"'),
        ({"type": "string", "pattern": r"^[\x20-!#-\[\]-~]+$"}, '"AB"'),
        ({"type": "object", "properties": {"ab": {}}, "patternProperties": {"^x": {}}}, '{"ab":1}'),
    ],
)
def test_other_schemas_are_as_before(schema, text):
    assert refusal(schema) == ""
    entry = matcher(TOKENIZER, GrammarKind.JSON, json.dumps(schema))
    for token in tokens_of(text):
        entry.accept(token)
    assert entry.error == ""
    assert entry.matcher.is_accepting()


def test_the_schemas_of_functions_are_checked_too():
    function = {
        "name": "f",
        "arguments": {"type": "object", "properties": {"x": {"const": 2**53 + 1}}},
        "field": "tools.0",
    }
    grammar = {"form": "list", "functions": [function], "parallel": True}
    made = answer(TOKENIZER, {"kind": "calls", "text": json.dumps(grammar), "reasoning": ""})
    assert made["field"] == "tools.0"
    assert made["error"].startswith("#/properties/x: const: 9007199254740993 cannot be")
