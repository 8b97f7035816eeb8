"""`repeatable`: a validator of JSON objects of clients that answers repeat, so that the answer is valid JSON, too."""

from __future__ import annotations

import json
from typing import Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from orca_master.bodies.lengths import check_depth


def _check(value: dict[str, Any]) -> dict[str, Any]:
    check_depth(value)
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise PydanticCustomError("no_json", "NaN and Infinity are no JSON") from error
    return value


repeatable = AfterValidator(_check)
