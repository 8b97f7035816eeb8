"""Request bodies of tools: the functions that a model can call, and its calls in earlier messages.

Source: OpenAI API reference, "Chat", `tools` and `tool_choice`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from orca_master.bodies.body import Body, Name
from orca_master.bodies.lengths import at_most, check_options, is_too_deep, refuse_more

MAX_TOOLS = 128
"""OpenAI's."""
MAX_TOOLS_BYTES = 1 << 20
"""Maximum size of all tools of a request, as JSON."""
OF_NO_PARAMETERS = {"type", "properties", "required", "title", "description", "$schema", "$defs", "definitions"}
"""Keywords of a schema that means no parameters if its properties are empty, although it allows any."""
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_./:-]{1,256}$")]


class Function(Body):
    """A function with the JSON schema of its parameters."""

    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any], check_options] = {}
    strict: bool = False

    @property
    def arguments_schema(self) -> dict[str, Any]:
        """The schema of the arguments, which are an object; raises ValueError if `parameters` excludes objects."""
        schema = self.parameters
        types = schema.get("type", "object")
        if types != "object" and not (isinstance(types, list) and "object" in types):
            raise ValueError("the arguments of a function are an object: use type: object")
        is_empty = schema.get("properties") == {} and not schema.get("required")
        if not schema or (is_empty and schema.keys() <= OF_NO_PARAMETERS):
            schema = {"properties": {}, "additionalProperties": False, **schema}
        return {**schema, "type": "object"}


class Tool(Body):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Function


class FunctionReference(Body):
    """The function of `NamedTool`."""

    name: FunctionName


class NamedTool(Body):
    """A `tool_choice` of one function."""

    type: Literal["function"]
    function: FunctionReference


def object_of(arguments: str) -> dict[str, Any] | None:
    """Return the arguments of a call, {} for empty ones; None if they are no JSON object that a request can contain."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_too_deep(value) else None


class FunctionCall(Body):
    """Name and arguments of a call; the arguments are a JSON object as text, or what a model wrote instead."""

    name: Name
    arguments: str

    @property
    def values(self) -> dict[str, Any] | str:
        """The arguments by name; the text itself if it is no JSON object: agents tell a model what it wrote."""
        values = object_of(self.arguments)
        return self.arguments if values is None else values


class ToolCall(Body):
    """A call of an earlier answer. `index`: some clients repeat it from a stream."""

    id: Name
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


def _unique(tools: list[Tool]) -> list[Tool]:
    names = [tool.function.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PydanticCustomError("twice", "the function {name} is given twice", {"name": repr(twice)})
    return tools


def _check_size(tools: Any) -> Any:
    try:
        count = len(json.dumps(tools))
    except (TypeError, RecursionError):  # tools that were checked before; too deep: check_options refuses it
        return tools
    refuse_more(
        count,
        MAX_TOOLS_BYTES,
        "{count} bytes of JSON in all tools together, at most {limit} are allowed: send fewer tools",
    )
    return tools


check_size = BeforeValidator(_check_size)
"""Checks the size of all tools, before each is checked."""
ToolList = Annotated[
    list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), check_size, at_most(MAX_TOOLS), AfterValidator(_unique)
]
ToolCalls = Annotated[list[ToolCall], Field(max_length=MAX_TOOLS, fail_fast=True), at_most(MAX_TOOLS)]
