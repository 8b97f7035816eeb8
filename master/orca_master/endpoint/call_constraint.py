"""`grammar_of_calls`: what an answer with tools must match, from the request and the formats of the model's answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.bodies.tools import Function, NamedTool
from orca_master.errors import RequestError
from orca_master.scheduling.constraint import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from orca_master.text.call_grammar import ARGUMENTS, LIST, CallableFunction, CallGrammar

FIELD = "tools"
ANY_ARGUMENTS = {"type": "object"}


def grammar_of_calls(
    body: ChatCompletionRequest, form: str, reasoning: str, answer_schema: dict[str, Any] | None = None
) -> Grammar | None:
    """Return the grammar of a request's calls, None if the model alone decides about them.

    `form`: the model's own format of calls (tool_calls.py). `reasoning`: that of the reasoning, "" without any.
    `answer_schema`: of an answer without calls, None for any text.
    Raises RequestError for a schema that is not one of objects.
    """
    functions = [tool.function for tool in body.tools]
    if isinstance(choice := body.tool_choice, NamedTool):
        names, form = {choice.function.name}, ARGUMENTS
    elif choice == "required":
        names, form = {function.name for function in functions}, LIST
    else:
        names = {function.name for function in functions if function.strict and choice != "none"}
    if not names and answer_schema is None:
        return None
    called = tuple(
        _callable(function, f"{FIELD}.{index}.function.parameters", function.name in names)
        for index, function in enumerate(functions)
        if form != ARGUMENTS or function.name in names
    )
    try:
        _check_size(called)
        text = CallGrammar(form, called, body.parallel_tool_calls, answer_schema).text
    except RecursionError as error:
        raise RequestError(f"{FIELD}: nested too deeply", FIELD) from error
    return Grammar(GrammarKind.CALLS, text, FIELD, reasoning=reasoning)


def _check_size(functions: Iterable[CallableFunction]) -> None:
    """Raise RequestError for schemas that are longer together than a grammar may be, after the first that is too much.

    A request may have megabytes of them, and this is the thread that serves all clients.
    """
    num_bytes = 0
    for function in functions:
        num_bytes += len(json.dumps(function.arguments))
        if num_bytes > MAX_GRAMMAR_BYTES:
            message = f"the list of functions cannot be compiled: it has more than {MAX_GRAMMAR_BYTES} bytes"
            raise RequestError(f"{FIELD}: {message}", FIELD)


def _callable(function: Function, field: str, is_strict: bool) -> CallableFunction:
    if not is_strict:
        return CallableFunction(function.name, ANY_ARGUMENTS, field)
    try:
        return CallableFunction(function.name, function.arguments_schema, field)
    except ValueError as error:
        raise RequestError(f"{field}: {error}", FIELD) from error
