"""JSON schemas of the kinds that clients send, generated from a seed, and schemas that a server refuses.

`KINDS` has one function per kind, which returns a schema of bounded answers. `UNSUPPORTED` are kinds that llguidance
cannot enforce; `HOSTILE` are schemas beyond the limits.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
NAMES = (
    "id",
    "name",
    "age",
    "size",
    "größe",
    "名前",
    "first name",
    "a/b",
    "x~y",
    "e-mail",
    "tags",
    "next",
    "ok",
    "été",
)
WORDS = ("red", "green", "blue", "Straße", "北京", 'a "quoted" word', "back\\slash", "", "two words", "emoji 🙂", "\t")
PATTERNS = (
    "^[a-z]{1,6}$",
    "^[0-9]{3}-[0-9]{4}$",
    "^(yes|no|maybe)$",
    "^[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5})?$",
    "^#[0-9a-f]{6}$",
)
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")


def closed(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    """Return the schema of an object with these properties and no others."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


def scalar(rng: random.Random) -> Schema:
    """Return the schema of a value that is no object and no array."""
    return rng.choice((integer, number, words, pattern, short_text, flag))(rng)


def integer(rng: random.Random) -> Schema:
    least = rng.randint(-1000, 1000)
    return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 5000)}


def exclusive_integer(rng: random.Random) -> Schema:
    least = rng.randint(-50, 50)
    return {"type": "integer", "exclusiveMinimum": least, "exclusiveMaximum": least + rng.randint(2, 500)}


def multiple(rng: random.Random) -> Schema:
    return {"type": "integer", "multipleOf": rng.choice((2, 5, 10, 25)), "minimum": 0, "maximum": 1000}


def number(rng: random.Random) -> Schema:
    least = round(rng.uniform(-10, 10), 2)
    return {"type": "number", "minimum": least, "maximum": round(least + rng.uniform(0.5, 20), 2)}


def words(rng: random.Random) -> Schema:
    return {"enum": rng.sample(WORDS, rng.randint(1, 5))}


def mixed_enum(rng: random.Random) -> Schema:
    return {"enum": rng.sample([1, 2.5, "two", None, True, -3, "ü"], rng.randint(2, 6))}


def constant(rng: random.Random) -> Schema:
    return {"const": rng.choice([7, "fixed", None, False, {"a": [1, 2]}, ["x", {"y": 1}]])}


def pattern(rng: random.Random) -> Schema:
    return {"type": "string", "pattern": rng.choice(PATTERNS)}


def short_text(rng: random.Random) -> Schema:
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}


def formatted(rng: random.Random) -> Schema:
    return closed({"value": {"type": "string", "format": rng.choice(FORMATS[:5])}})


def flag(rng: random.Random) -> Schema:
    return {"type": rng.choice(("boolean", "null"))}


def several_types(rng: random.Random) -> Schema:
    return {"type": ["integer", "null", "boolean"], "minimum": -99, "maximum": 99, "description": rng.choice(WORDS)}


def flat_object(rng: random.Random) -> Schema:
    return closed({name: scalar(rng) for name in rng.sample(NAMES, rng.randint(1, 5))})


def optional_properties(rng: random.Random) -> Schema:
    names = rng.sample(NAMES, 4)
    return closed({name: scalar(rng) for name in names}, sorted(rng.sample(names, rng.randint(0, 3))))


def nested_object(rng: random.Random, depth: int = 3) -> Schema:
    if depth == 0:
        return scalar(rng)
    inner = {name: nested_object(rng, depth - 1) for name in rng.sample(NAMES, rng.randint(1, 2))}
    return closed(inner)


def array(rng: random.Random) -> Schema:
    least = rng.randint(0, 2)
    return {"type": "array", "items": scalar(rng), "minItems": least, "maxItems": least + rng.randint(0, 3)}


def array_of_objects(rng: random.Random) -> Schema:
    return {"type": "array", "items": flat_object(rng), "minItems": 1, "maxItems": 2}


def matrix(rng: random.Random) -> Schema:
    row = {"type": "array", "items": integer(rng), "minItems": 2, "maxItems": 2}
    return {"type": "array", "items": row, "minItems": 1, "maxItems": 3}


def tuple_(rng: random.Random) -> Schema:
    parts = [scalar(rng) for _ in range(rng.randint(1, 4))]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}


def union(rng: random.Random) -> Schema:
    return {"anyOf": [scalar(rng), array(rng), flat_object(rng)]}


def nullable(rng: random.Random) -> Schema:
    return closed({"value": {"anyOf": [scalar(rng), {"type": "null"}]}})


def tagged_union(rng: random.Random) -> Schema:
    kinds = rng.sample(("cat", "dog", "bird", "fish"), rng.randint(2, 4))
    return {"oneOf": [closed({"kind": {"const": kind}, "value": scalar(rng)}) for kind in kinds]}


def references(rng: random.Random) -> Schema:
    point = closed({"x": integer(rng), "y": integer(rng)})
    return closed({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}) | {"$defs": {"point": point}}


def old_definitions(rng: random.Random) -> Schema:
    return closed({"entry": {"$ref": "#/definitions/entry"}}) | {"definitions": {"entry": flat_object(rng)}}


def linked_list(rng: random.Random) -> Schema:
    node = closed({"value": words(rng), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def tree(rng: random.Random) -> Schema:
    children = {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}
    return closed({"label": words(rng), "children": children})


def open_map(rng: random.Random) -> Schema:
    return {"type": "object", "additionalProperties": integer(rng), "maxProperties": 2, "minProperties": 0}


def named_map(rng: random.Random) -> Schema:
    return {
        "type": "object",
        "patternProperties": {"^k[0-9]$": integer(rng)},
        "additionalProperties": False,
        "maxProperties": 2,
    }


def merged(rng: random.Random) -> Schema:
    names = rng.sample(NAMES, 2)
    parts = [{"type": "object", "properties": {name: scalar(rng)}, "required": [name]} for name in names]
    return {"allOf": parts, "type": "object", "maxProperties": 2}


def pydantic_like(rng: random.Random) -> Schema:
    level = {"enum": ["low", "high"], "title": "Level", "type": "string"}
    item = closed({"title": short_text(rng), "level": {"$ref": "#/$defs/Level"}}, title="Item")
    items = {"items": {"$ref": "#/$defs/Item"}, "title": "Items", "type": "array", "maxItems": 2}
    return closed({"items": items, "total": integer(rng)}, title="Order") | {"$defs": {"Item": item, "Level": level}}


KINDS: tuple[Callable[[random.Random], Schema], ...] = (
    *(integer, exclusive_integer, multiple, number, words, mixed_enum, constant, pattern, short_text, formatted),
    *(several_types, flat_object, optional_properties, nested_object, array, array_of_objects, matrix, tuple_, union),
    *(nullable, tagged_union, references, old_definitions, linked_list, tree, open_map, named_map, merged),
    pydantic_like,
)  # fmt: skip
UNSUPPORTED: tuple[Schema, ...] = (
    {"not": {"type": "string"}},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    {"if": {"type": "string"}, "then": {"minLength": 1}},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"type": "array", "contains": {"type": "string"}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "string", "pattern": "^(?=a)b"},
    {"type": "string", "format": "unheard-of"},
    {"$ref": "https://example.com/schema.json"},
)
HOSTILE: dict[str, Schema] = {
    "deep": functools.reduce(lambda inner, _: {"type": "array", "items": inner}, range(400), Schema()),
    "exponential": {"allOf": [{"anyOf": [{"pattern": f"a*b{i}{j}"} for j in range(8)]} for i in range(8)]},
    "slow": {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(4000)}},
}
"""Beyond the limits of depth, of the compiled grammar's size, and of the processor time of compiling."""


def schemas(count: int, seed: int = 0) -> list[Schema]:
    """Return `count` different schemas, all kinds in turn as long as a kind has further ones."""
    rng, found = random.Random(seed), dict[str, Schema]()
    while len(found) < count:
        for kind in KINDS:
            schema = kind(rng)
            found.setdefault(json.dumps(schema, sort_keys=True), schema)
    return list(found.values())[:count]


def is_prefix_of_json(text: str) -> bool:
    """Return True if `text` can be continued to a JSON value, or is one."""
    closers: list[str] = []
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "{[":
            closers.append("}" if character == "{" else "]")
        elif character in "}]" and (not closers or closers.pop() != character):
            return False
    whole = text + ('"' if in_string and not escaped else "")
    end = "".join(reversed(closers))
    fillers = ("", "0", '""', "null", ": null", '"": null', "e0", "rue", "alse", "ull", '\\"', "u0000")
    return any(_is_json(whole[: len(whole) - cut] + filler + end) for cut in range(6) for filler in fillers)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
