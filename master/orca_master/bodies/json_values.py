"""`repeatable`: a validator of JSON objects of clients that answers repeat, so that the answer is valid JSON, too."""

from __future__ import annotations

import json
from typing import Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from orca_master.bodies.lengths import MAX_DEPTH, is_too_deep


def _check(value: dict[str, Any]) -> dict[str, Any]:
    if is_too_deep(value):
        raise PydanticCustomError("too_deep", "nested more than {limit} levels deep", {"limit": MAX_DEPTH})
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise PydanticCustomError("no_json", "NaN and Infinity are no JSON") from error
    return value


repeatable = AfterValidator(_check)
