"""Finds the place of an error in a JSON schema: llguidance's messages have none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

_NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose values are schemas by name."""
_LISTS = ("items", "prefixItems", "anyOf", "allOf", "oneOf")
_SINGLE = ("items", "additionalProperties", "additionalItems")
SEARCH_SECONDS = 0.3
"""Bound of the search: an error without an exact place is better than none."""


def locate(schema: Any, message: str, error_of: Callable[[Any], str]) -> str:
    """Return `message` with the path of the smallest part of `schema` that has the same error.

    `error_of` returns the error of a schema, "" if it has none. Parts are tried with the definitions of the whole.
    """
    end = time.monotonic() + SEARCH_SECONDS
    definitions = {
        name: schema[name] for name in ("$defs", "definitions") if isinstance(schema, dict) and name in schema
    }
    path, part = "#", schema
    while True:
        for name, child in children(part):
            if time.monotonic() > end:
                return f"{path}: {message}"
            tried = child if not isinstance(child, dict) else {**definitions, **child}
            if " ".join(error_of(tried).removesuffix("<non-verbose/>").split()) == message:
                path, part = f"{path}/{name}", child
                break
        else:
            return f"{path}: {message}"


def children(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the direct parts of a schema with their paths in it."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            for name, child in value.items():
                yield f"{keyword}/{_escaped(name)}", child
        elif keyword in _LISTS and isinstance(value, list):
            for index, child in enumerate(value):
                yield f"{keyword}/{index}", child
        elif keyword in _SINGLE and isinstance(value, dict):
            yield keyword, value


def _escaped(name: str) -> str:
    """Return a name as a JSON pointer has it (RFC 6901), of limited length."""
    return name.replace("~", "~0").replace("/", "~1")[:64]
