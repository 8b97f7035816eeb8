"""The API server's processing of a custom resource, for callers without such a server.

Both functions follow a structural schema: `admitted` drops unknown fields and nulls and fills in defaults; `problems`
checks types, bounds, patterns, enums, required fields and the keys of lists. CEL rules are not evaluated here:
validation.py has them in Python. The tests compare both functions with the API server's own code.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_KEYS = "x-kubernetes-list-map-keys"


def admitted(value: Any, schema: Schema) -> Any:
    """Return a copy of `value` as the API server would store it, whether or not it is valid."""
    return defaulted(_pruned(value, schema), schema)


def _pruned(value: Any, schema: Schema) -> Any:
    if isinstance(value, list):
        items = schema.get("items")
        return copy.deepcopy(value) if items is None else [_pruned(item, items) for item in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for name, entry in value.items():
        child = _field(schema, name)
        if child is None:
            if schema.get(PRESERVE):
                kept[name] = copy.deepcopy(entry)
        elif entry is not None:  # no schema here is nullable
            kept[name] = _pruned(entry, child)
    return kept


def defaulted(value: Any, schema: Schema) -> Any:
    """Return a copy of `value` with defaults filled in at every level, also inside defaults."""
    if isinstance(value, list) and "items" in schema:
        return [defaulted(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return copy.deepcopy(value)
    filled = dict(value)
    for name, child in schema.get("properties", {}).items():
        if name not in filled and "default" in child:
            filled[name] = child["default"]
    return {
        name: copy.deepcopy(entry) if (child := _field(schema, name)) is None else defaulted(entry, child)
        for name, entry in filled.items()
    }


def _field(schema: Schema, name: str) -> Schema | None:
    child: Schema | None = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
    return child


def problems(value: Any, schema: Schema, path: str) -> Iterator[str]:
    """Yield a message for each violation in an admitted value, beginning with the path of the field."""
    if (problem := _type_problem(value, schema)) is not None:
        yield f"{path}: {problem}"
        return
    for problem in _value_problems(value, schema):
        yield f"{path}: {problem}"
    if isinstance(value, dict):
        for name in schema.get("required", []):
            if name not in value:
                yield f"{path}.{name}: is required"
        for name, entry in value.items():
            if (child := _field(schema, name)) is not None:
                yield from problems(entry, child, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{path}[{index}]")
        yield from _repetitions(value, schema.get(LIST_KEYS, []), path)


def _type_problem(value: Any, schema: Schema) -> str | None:
    expected = "an integer or a string" if schema.get(INT_OR_STRING) else schema.get("type")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = number and float(value).is_integer() and -(2**63) <= value < 2**63
    fits = {
        "an integer or a string": whole or isinstance(value, str),
        "string": isinstance(value, str),
        "integer": whole,
        "boolean": isinstance(value, bool),
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        None: True,
    }
    if fits[expected]:
        return None
    article = "" if schema.get(INT_OR_STRING) else "of type "
    return f"must be {article}{expected}, got {_shown(value)}"


def _value_problems(value: Any, schema: Schema) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"must be one of {', '.join(filter(None, schema['enum']))}, got {_shown(value)}"
    if isinstance(value, str):
        if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
            yield f"must match {schema['pattern']}, got {_shown(value)}"
        size, names, unit = len(value), ("minLength", "maxLength"), "characters"
    elif isinstance(value, list):
        size, names, unit = len(value), ("minItems", "maxItems"), "entries"
    elif isinstance(value, dict):
        size, names, unit = len(value), ("minProperties", "maxProperties"), "entries"
    else:
        size, names, unit = value, ("minimum", "maximum"), ""
    least, most = (schema.get(name) for name in names)
    if least is not None and size < least:
        yield f"must be at least {least} {unit}".rstrip() + f", got {_shown(value)}"
    if most is not None and size > most:
        yield f"must be at most {most} {unit}".rstrip() + f", got {_shown(value)}"


def _repetitions(items: list[Any], keys: list[str], path: str) -> Iterator[str]:
    """Yield a message for each entry of a list of type map that repeats the keys of an earlier entry."""
    known = set()
    for index, item in enumerate(items):
        if not keys or not isinstance(item, dict):
            continue
        key = json.dumps([item.get(name) for name in keys], sort_keys=True)
        if key in known:
            named = ", ".join(f"{name} {_shown(item.get(name))}" for name in keys)
            yield f"{path}[{index}]: an earlier entry has the same {named}"
        known.add(key)


@functools.cache
def _pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern as the API server does: $ matches at the end of the value only, not before a line break."""
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern))


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:200]}…"
