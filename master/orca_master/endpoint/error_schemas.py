"""Errors in the OpenAPI description: which routes answer them, and the schemas of their bodies.

Routes refer to the schemas by name. Given the models themselves, FastAPI would compile a serializer for each route and
status: two thirds of the time that the application takes to be created, at the start of every process that serves HTTP.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

STATUSES = (400, 401, 404, 405, 408, 413, 415, 429, 503)
"""Of the errors that any route may answer with."""
REFERENCE = "#/components/schemas/{model}"


def error_responses(body: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's `responses` for errors with such a body; `error_schemas` has its schema."""
    content = {"application/json": {"schema": {"$ref": REFERENCE.format(model=body.__name__)}}}
    return {status: {"content": content} for status in STATUSES}


def error_schemas(*bodies: type[BaseModel]) -> dict[str, Any]:
    """Return the schemas of bodies, and of the models in their fields, by name."""
    schemas: dict[str, Any] = {}
    for body in bodies:
        schema = body.model_json_schema(ref_template=REFERENCE, mode="serialization")
        schemas |= schema.pop("$defs", {}) | {body.__name__: schema}
    return schemas
