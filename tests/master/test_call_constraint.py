"""grammar_of_calls: which requests constrain their answers, to which functions, in which form."""

from __future__ import annotations

from typing import Any

import pytest
from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.endpoint.call_constraint import ANY_ARGUMENTS, grammar_of_calls
from orca_master.errors import RequestError
from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.call_grammar import ARGUMENTS, LIST, CallGrammar

EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
X = {"type": "object", "properties": {"x": {"type": "integer"}}}


def function(name: str, parameters: dict[str, Any] | None = None, strict: bool = False) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


def body(tool_choice: Any, *tools: dict[str, Any], **options: Any) -> ChatCompletionRequest:
    message = {"role": "user", "content": "Hi"}
    return ChatCompletionRequest.model_validate(
        {"messages": [message], "tools": list(tools), "tool_choice": tool_choice, **options}
    )


def grammar(request: ChatCompletionRequest, form: str = "hermes", reasoning: str = "") -> CallGrammar | None:
    made = grammar_of_calls(request, form, reasoning)
    if made is None:
        return None
    assert (made.kind, made.field, made.reasoning) == (GrammarKind.CALLS, "tools", reasoning)
    read = CallGrammar.of(made.text)
    assert read.text == made.text
    return read


def test_the_model_decides_without_a_demand_and_without_strict_functions():
    for choice in (None, "auto", "none"):
        assert grammar(body(choice, function("f", X))) is None
    assert grammar(body("none", function("f", X, strict=True))) is None
    assert grammar(body(None)) is None


def test_required_constrains_to_a_list_of_all_functions():
    made = grammar(body("required", function("f", X), function("g"), parallel_tool_calls=False), "", "qwen3")
    assert made is not None
    assert (made.form, made.parallel) == (LIST, False)
    assert [(entry.name, entry.arguments, entry.field) for entry in made.functions] == [
        ("f", X, "tools.0.function.parameters"),
        ("g", EMPTY, "tools.1.function.parameters"),
    ]


def test_a_named_function_constrains_to_its_arguments():
    choice = {"type": "function", "function": {"name": "g"}}
    made = grammar(body(choice, function("f", X, strict=True), function("g", X)))
    assert made is not None
    assert made.form == ARGUMENTS
    assert [(entry.name, entry.arguments, entry.field) for entry in made.functions] == [
        ("g", X, "tools.1.function.parameters")
    ]


def test_strict_functions_constrain_the_models_own_format():
    made = grammar(body("auto", function("f", X), function("g", X, strict=True)), "mistral")
    assert made is not None
    assert (made.form, made.parallel) == ("mistral", True)
    assert [entry.arguments for entry in made.functions] == [ANY_ARGUMENTS, X]


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        (None, EMPTY),
        ({}, EMPTY),
        ({"type": "object", "properties": {}, "title": "F"}, {**EMPTY, "title": "F"}),
        ({"type": "object", "properties": {}, "required": ["x"]}, None),
        ({"type": "object"}, {"type": "object"}),
        ({"properties": {}, "additionalProperties": True}, None),
        ({"type": ["null", "object"], "properties": {"x": {}}}, {"type": "object", "properties": {"x": {}}}),
        ({"$ref": "#/$defs/a", "$defs": {"a": X}}, {"$ref": "#/$defs/a", "$defs": {"a": X}, "type": "object"}),
    ],
)
def test_arguments_are_an_object_and_empty_without_parameters(parameters, schema):
    made = grammar(body("required", function("f", parameters)))
    assert made is not None
    assert made.functions[0].arguments == (schema or {**parameters, "type": "object"})


@pytest.mark.parametrize("kind", ["string", ["string", "null"], 5])
def test_parameters_that_are_no_object_are_refused(kind):
    request = body("required", function("f", X), function("g", {"type": kind}))
    with pytest.raises(RequestError, match=r"tools\.1\.function\.parameters: the arguments of a function are an"):
        grammar(request)


def test_parameters_that_are_nested_too_deeply_are_refused():
    nested: dict[str, Any] = {}
    for _ in range(2000):
        nested = {"a": nested}
    request = body("required", function("f", X))
    request.tools[0].function.parameters = nested
    with pytest.raises(RequestError, match="tools: nested too deeply"):
        grammar(request)


@pytest.mark.parametrize("more", [{"required": []}, {"$defs": {}}, {"required": [], "title": "None"}])
def test_a_function_without_parameters_has_no_arguments_however_its_schema_says_so(more):
    made = grammar(body("required", function("f", {"type": "object", "properties": {}, **more})))
    assert made is not None
    assert made.functions[0].arguments["additionalProperties"] is False


def test_schemas_that_are_too_long_together_are_refused_before_they_are_joined():
    large = {"type": "object", "enum": ["a" * 50_000]}
    tools = [function(f"f{index}", large) for index in range(4)]
    with pytest.raises(
        RequestError, match="tools: the list of functions cannot be compiled: it has more than 131072 bytes"
    ):
        grammar_of_calls(body("required", *tools), "", "")
    assert grammar_of_calls(body("auto", *tools), "hermes", "") is None, "only where calls must match them"
