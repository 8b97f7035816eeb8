"""`Body`: the base of all JSON objects that clients send; the choice between several, and short texts."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema

from orca_master.bodies.absent_fields import AbsentFields, without_absent_fields
from orca_master.bodies.lengths import at_most, at_most_characters

MAX_NAME = 4096
"""Maximum characters of a text that is neither prompt nor message."""
# pydantic's own max_length would refuse a text with a lone surrogate, which is harmless outside prompts.
Name = Annotated[str, Field(json_schema_extra={"maxLength": MAX_NAME}), at_most_characters(MAX_NAME)]
MAX_METADATA = 16
Metadata = Annotated[
    dict[
        Annotated[str, at_most_characters(64), Field(json_schema_extra={"maxLength": 64})],
        Annotated[str, at_most_characters(512), Field(json_schema_extra={"maxLength": 512})],
    ],
    Field(max_length=MAX_METADATA),
    at_most(MAX_METADATA),
]
"""Texts of a client that are returned with an object, by name."""
REQUEST_ID_PATTERN = "^[A-Za-z0-9_.-]{1,128}$"
RequestId = Annotated[str, Field(pattern=REQUEST_ID_PATTERN)]
"""A client's name for a request, in place of the header X-Request-Id."""
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""Priority of a request under `--scheduling-policy priority`: a smaller one is served earlier."""


_ANNOTATIONS = ("title", "description", "default")
_NULL = {"type": "null"}


class Body(BaseModel):
    """A JSON object. `null` for a field with a default means the default."""

    model_config = ConfigDict(extra="forbid")
    absent: ClassVar[AbsentFields] = {}
    """Fields of other servers that are known, but not supported."""

    @model_validator(mode="before")
    @classmethod
    def _known_and_not_null(cls, data: Any) -> Any:
        """Drop optional fields that are null, and all unknown fields except the first, which the error names.

        Some clients send null for fields that they do not use.
        """
        if not isinstance(data, dict):
            return data
        data = without_absent_fields(data, cls.absent) if cls.absent else data
        known = {
            name: data[name]
            for name, field in cls.model_fields.items()
            if name in data and (data[name] is not None or field.is_required())
        }
        unknown = next((name for name, value in data.items() if name not in cls.model_fields and value is not None), "")
        return known | {unknown: data[unknown]} if unknown in data else known

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> JsonSchemaValue:
        """Return the JSON schema, in which optional fields of a request can be null."""
        schema = handler(core_schema)
        if handler.mode == "validation":
            described = handler.resolve_ref_schema(schema)
            fields = described.get("properties", {})
            for name in fields.keys() - described.get("required", ()):
                fields[name] = nullable(fields[name])
        return schema


def nullable(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a value that can also be null."""
    kinds = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
    if not kinds:  # any value
        return schema
    choices = kinds["anyOf"] if kinds.keys() == {"anyOf"} else [kinds]
    others = [choice for choice in choices if choice != _NULL]
    return {"anyOf": [*others, _NULL], **{name: value for name, value in schema.items() if name in _ANNOTATIONS}}


def tagged(tags: tuple[str, ...], field: str, message: str, default: str = "") -> Discriminator:
    """Return the choice of a class by a field's value, which is its tag in brackets; `message` refuses others.

    `default`: the value where the field is absent or null, "" if it is required.
    """

    def tag_of(value: Any) -> str | None:
        name = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
        if name is None and isinstance(value, dict):
            name = default
        return f"[{name}]" if isinstance(name, str) and name in tags else None

    return Discriminator(tag_of, custom_error_type="unsupported", custom_error_message=message)
