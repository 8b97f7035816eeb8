"""`misread`: finds what llguidance would enforce differently than JSON Schema says, so that such a schema is refused.

- Numbers are written as 64-bit floating-point numbers, so integers beyond 2^53 may become other ones. (Bounds of such a
  size are then off by a few, which is left as it is: generators of schemas write those of 64-bit integers.)
- A class of characters that excludes the quotation mark or the backslash may match its escape sequence.
- `patternProperties` are not applied to names in `properties`.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from orca_master.text.schema_errors import children

_OF_NUMBERS = ("enum", "const", "multipleOf")
_NEGATED_CLASS = re.compile(r"\[\^(?:[^\]\\]|\\.)*\]", re.DOTALL)
_ESCAPED = {'"': r'"\""', "\\": r'"\\"'}
"""The characters of JSON that a class may let through, and the strings that consist of them."""
Accepts = Callable[[str, str], bool]
"""Returns whether llguidance's grammar of the strings with a pattern matches a JSON text."""


def misread(schema: Any, accepts: Accepts) -> str:
    """Return the place of the first part of `schema` that would be enforced differently, and why; "" without any."""
    parts, references = [("#", schema)], set[str]()
    while parts:
        path, part = parts.pop()
        if isinstance(part, dict):
            if reason := next(_reasons(part, accepts), ""):
                return f"{path}: {reason}"
            reference = part.get("$ref")
            if isinstance(reference, str) and reference not in references:
                references.add(reference)
                parts.append((reference, _target(schema, reference)))
        parts.extend((f"{path}/{name}", child) for name, child in children(part))
    return ""


def _target(schema: Any, reference: str) -> Any:
    """Return the part of `schema` at a JSON pointer (RFC 6901); None without one, or in another document."""
    start, *escaped = urllib.parse.unquote(reference).split("/")
    part = schema if start == "#" else None
    for name in (text.replace("~1", "/").replace("~0", "~") for text in escaped):
        if isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            part = part.get(name) if isinstance(part, dict) else None
    return part


def _reasons(part: dict[str, Any], accepts: Accepts) -> Iterator[str]:
    for keyword in _OF_NUMBERS:
        if (number := _inexact(part.get(keyword))) is not None:
            yield f"{keyword}: {number} cannot be represented as a 64-bit floating-point number: use a string"
    named = part.get("patternProperties")
    patterns = list(named) if isinstance(named, dict) else []
    for pattern in [part.get("pattern"), *patterns]:
        if isinstance(pattern, str) and (found := _leaking_class(pattern, accepts)):
            negated, character = found
            yield f"pattern: {negated} would also match {character}, which it excludes: list the allowed characters"
    properties = part.get("properties")
    for name in properties if isinstance(properties, dict) else ():
        if any(_matches(pattern, name, if_unknown=False) for pattern in patterns):
            yield f"patternProperties: a pattern matches {name[:64]!r} of properties, to which it would not be applied"


def _inexact(value: Any) -> int | None:
    """Return the first integer in `value` that no 64-bit floating-point number has."""
    values = [value]
    while values:
        entry = values.pop()
        if isinstance(entry, dict):
            values.extend(entry.values())
        elif isinstance(entry, list):
            values.extend(reversed(entry))
        elif (
            isinstance(entry, int)
            and abs(entry) > 1 << 53
            and (entry.bit_length() > 1023 or int(float(entry)) != entry)
        ):
            return entry
    return None


def _leaking_class(pattern: str, accepts: Accepts) -> tuple[str, str] | None:
    """Return a negated class in `pattern` and a character that it excludes and llguidance accepts."""
    for negated in _NEGATED_CLASS.findall(pattern):
        for character, text in _ESCAPED.items():
            if not _matches(f"^{negated}$", character, if_unknown=True) and accepts(f"^{negated}$", text):
                return negated[:64], character
    return None


def _matches(pattern: str, text: str, if_unknown: bool) -> bool:
    """Return whether a pattern matches; `if_unknown` for a pattern of another dialect than Python's."""
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return if_unknown
