"""`Rule`: a rule over several fields of a spec, in CEL for the API server and in Python for the operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orca_operator.api import Spec


@dataclass(frozen=True, slots=True)
class Rule:
    """In `cel`, `self` is the object at `path` below spec ("" for spec itself, None for the whole object)."""

    path: str | None
    cel: str
    field: str
    message: str
    holds: Callable[[str, Spec], bool]
