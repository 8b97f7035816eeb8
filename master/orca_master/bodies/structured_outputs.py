"""`response_format` (OpenAI) and `structured_outputs` (vLLM): what an answer must match, as one `Grammar`.

Both are checked for their form here; whether a schema or a grammar can be compiled is decided by the engine
(text/grammar_compiler.py). A schema is enforced with and without `strict`, and nothing in it is ignored.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Required

from pydantic import BeforeValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from orca_master.bodies.absent_fields import STRUCTURED_OUTPUTS, without_absent_fields
from orca_master.bodies.lengths import MAX_DEPTH, at_most, at_most_characters, is_too_deep
from orca_master.scheduling.constraint import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

MAX_GRAMMAR_CHOICES = 4096
_ANY_OBJECT = '{"type": "object"}'
_Source = Annotated[
    str,
    Field(json_schema_extra={"minLength": 1, "maxLength": MAX_GRAMMAR_BYTES}),
    at_most_characters(MAX_GRAMMAR_BYTES),
]


# Typed dictionaries, because a pydantic model cannot have fields named `schema` or `json`.
@with_config(ConfigDict(extra="forbid"))
class JsonSchemaFormat(TypedDict, total=False):
    """`json_schema` of `response_format`."""

    name: Required[Annotated[str, at_most_characters(4096)]]
    description: Annotated[str, at_most_characters(MAX_GRAMMAR_BYTES)] | None
    schema: dict[str, Any] | None
    strict: bool | None


@with_config(ConfigDict(extra="forbid"))
class ResponseFormat(TypedDict, total=False):
    """`response_format`."""

    type: Required[Literal["text", "json_object", "json_schema"]]
    json_schema: JsonSchemaFormat | None


@with_config(ConfigDict(extra="forbid"))
class StructuredOutputs(TypedDict, total=False):
    """`structured_outputs`: exactly one of the fields."""

    json: dict[str, Any] | _Source | None
    regex: _Source | None
    choice: (
        Annotated[
            list[_Source],
            Field(min_length=1, max_length=MAX_GRAMMAR_CHOICES, fail_fast=True),
            at_most(MAX_GRAMMAR_CHOICES),
        ]
        | None
    )
    grammar: _Source | None
    json_object: bool | None


def _known(value: Any) -> Any:
    return without_absent_fields(value, STRUCTURED_OUTPUTS) if isinstance(value, dict) else value


KnownStructuredOutputs = Annotated[StructuredOutputs, BeforeValidator(_known)]
"""Without the options that ask for nothing."""


def grammar_of(response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None) -> Grammar | None:
    """Return the grammar of a request, None if any text may be generated; raise ValueError with the field's name."""
    grammar = None if response_format is None else _of_response_format(response_format)
    if structured_outputs is None:
        return grammar
    if grammar is not None:
        raise ValueError("structured_outputs: is not allowed together with response_format")
    return _of_structured_outputs(structured_outputs)


def _of_response_format(value: ResponseFormat) -> Grammar | None:
    schema_format, kind = value.get("json_schema"), value["type"]
    if kind != "json_schema":
        if schema_format is not None:
            raise ValueError("response_format: json_schema is only allowed with type: json_schema")
        return Grammar(GrammarKind.JSON, _ANY_OBJECT, "response_format") if kind == "json_object" else None
    if schema_format is None or (schema := schema_format.get("schema")) is None:
        raise ValueError("response_format: json_schema with a schema is missing")
    return Grammar(GrammarKind.JSON, _as_json(schema, "response_format"), "response_format")


def _of_structured_outputs(value: StructuredOutputs) -> Grammar:
    given = {name: entry for name, entry in value.items() if entry is not None and entry is not False}
    if len(given) != 1:
        raise ValueError(f"structured_outputs: exactly one of {', '.join(StructuredOutputs.__annotations__)} is needed")
    ((name, content),) = given.items()
    if name == "json_object":
        return Grammar(GrammarKind.JSON, _ANY_OBJECT)
    text = content if isinstance(content, str) else _as_json(content, "structured_outputs")
    try:
        count = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"structured_outputs: {name} has a lone surrogate at character {error.start}") from error
    if count > MAX_GRAMMAR_BYTES:
        raise ValueError(f"structured_outputs: {count} bytes, at most {MAX_GRAMMAR_BYTES} are allowed")
    return Grammar(GrammarKind(name), text)


def _as_json(value: Any, field: str) -> str:
    """Return a client's value as JSON, in the order of its fields, which an answer follows."""
    if is_too_deep(value):
        raise ValueError(f"{field}: nested more than {MAX_DEPTH} levels deep")
    text = json.dumps(value)
    if len(text) > MAX_GRAMMAR_BYTES:
        raise ValueError(f"{field}: {len(text)} bytes of JSON, at most {MAX_GRAMMAR_BYTES} are allowed")
    return text
