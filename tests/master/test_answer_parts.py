"""Tool calls and reasoning in the chat API, through the official client, over an engine with prepared answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.endpoint.answer_parts import AnswerFormat, AnswerParser
from orca_master.endpoint.api_keys import digest
from orca_master.scheduling.constraint import GrammarKind
from orca_master.scheduling.request import FinishReason
from orca_master.text.call_grammar import CallGrammar
from support.scripted_engine import END, MODEL, Scripted, make_model

TEMPLATES = {
    "hermes": "{% if tools %}{{ tools | tojson }} in <tool_call>{% endif %}{{ messages | tojson }}",
    "llama3_json": "{% if tools %}{{ tools | tojson }} after <|python_tag|>{% endif %}{{ messages | tojson }}",
    "mistral": "{% if tools %}{{ tools | tojson }} after [TOOL_CALLS]{% endif %}{{ messages | tojson }}",
    "unknown": "{{ messages | tojson }}",
}
MARKERS = ("<|python_tag|>", "[TOOL_CALLS]")
ANSWERS = {
    "hermes": 'Yes. <tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    "llama3_json": '<|python_tag|>{"name": "add", "parameters": {"x": 1}}; {"name": "now", "parameters": {}}',
    "mistral": 'Yes. [TOOL_CALLS][{"name": "add", "arguments": {"x": 1}}, {"name": "now", "arguments": {}}]',
}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add one.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
QUESTION: list[Any] = [{"role": "user", "content": "1 + 1?"}]


def play(scripted: Scripted, scene: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with scripted as client:
            await scene(client.chat.completions)

    asyncio.run(asyncio.wait_for(run(), 60))


def reasoning_rule(scripted: Scripted) -> str:
    """Return the format of the reasoning before the grammar of the last request."""
    grammar = scripted.engine.submissions[-1].grammar
    assert grammar is not None
    return grammar.reasoning


@pytest.fixture(params=sorted(ANSWERS))
def form(request) -> str:
    return request.param


def test_calls_of_an_answer_and_of_a_stream(tmp_path, form):
    scripted = Scripted(make_model(tmp_path, TEMPLATES[form], MARKERS), f"{ANSWERS[form]}{END}")

    async def scene(completions: Any) -> None:
        answer = await completions.create(model=MODEL, messages=QUESTION, tools=[ADD, NOW])
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == (None if form == "llama3_json" else "Yes. ")
        calls = choice.message.tool_calls
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
            ("add", {"x": 1}),
            ("now", {}),
        ]
        assert len({call.id for call in calls}) == 2
        assert '"description": "Add one."' in scripted.prompt
        content, names, arguments, reason = "", [], ["", ""], None
        async for chunk in await completions.create(model=MODEL, messages=QUESTION, tools=[ADD, NOW], stream=True):
            delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason
            content += delta.content or ""
            for call in delta.tool_calls or []:
                arguments[call.index] += call.function.arguments
                if call.id is not None:
                    assert call.type == "function"
                    names.append(call.function.name)
        assert (content or None, names, reason) == (choice.message.content, ["add", "now"], "tool_calls")
        assert [json.loads(text) for text in arguments] == [{"x": 1}, {}]

    play(scripted, scene)


@pytest.mark.parametrize("arguments", ["[1]", '{"x": 1', "one", f'{{"x": {"[" * 128}{"]" * 128}}}'])
def test_arguments_that_are_no_object_reach_the_template_as_they_are(tmp_path, arguments):
    """A model wrote them, and an agent tells it so."""
    scripted = Scripted(make_model(tmp_path, TEMPLATES["hermes"], MARKERS), f"Oh.{END}")
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}

    async def scene(completions: Any) -> None:
        messages = [
            *QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "the arguments must be an object"},
        ]
        await completions.create(model=MODEL, messages=messages, tools=[ADD])
        assert f'"function": {{"name": "add", "arguments": {json.dumps(arguments)}}}' in scripted.prompt

    play(scripted, scene)


def test_an_answer_of_another_server_is_sent_back_as_it_is(tmp_path):
    """As an agent does that changes the server within a conversation."""
    scripted = Scripted(make_model(tmp_path, TEMPLATES["hermes"], MARKERS), f"Oh.{END}")
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    given = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [call]}
    answer = ChatCompletionMessage.model_validate(given)

    async def scene(completions: Any) -> None:
        for message in (answer, answer.model_dump()):
            messages = [*QUESTION, message, {"role": "tool", "tool_call_id": "call_1", "content": "1"}]
            await completions.create(model=MODEL, messages=messages, tools=[ADD])
            assert "annotations" not in scripted.prompt
        for thought in ({"reasoning": "Hm."}, {"reasoning": "Hm.", "reasoning_content": "Hm."}, {"reasoning": None}):
            begun: Any = {"role": "assistant", "content": "a", **thought}
            await completions.create(model=MODEL, messages=[*QUESTION, begun, *QUESTION])
            (rendered,) = [message for message in json.loads(scripted.prompt) if message["role"] == "assistant"]
            assert rendered.get("reasoning_content") == thought["reasoning"]
            assert "reasoning" not in rendered
        cited = {"role": "assistant", "content": "a", "annotations": [{"type": "url_citation"}]}
        with pytest.raises(openai.BadRequestError, match="annotations: this field is unknown or not supported"):
            await completions.create(model=MODEL, messages=[*QUESTION, cited, *QUESTION])

    play(scripted, scene)


def test_a_conversation_with_a_result(tmp_path):
    scripted = Scripted(make_model(tmp_path, TEMPLATES["hermes"], MARKERS), f"It is 2.{END}")
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}

    async def scene(completions: Any) -> None:
        messages = [
            *QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        ]
        answer = await completions.create(model=MODEL, messages=messages, tools=[ADD])
        assert (answer.choices[0].message.content, answer.choices[0].message.tool_calls) == ("It is 2.", None)
        assert answer.choices[0].finish_reason == "stop"
        assert '"function": {"name": "add", "arguments": {"x": 1}}' in scripted.prompt
        assert '{"role": "tool", "content": "2", "tool_call_id": "call_1"}' in scripted.prompt

    play(scripted, scene)


def test_no_tools_no_parallel_calls_and_a_cut_answer(tmp_path, form):
    scripted = Scripted(make_model(tmp_path, TEMPLATES[form], MARKERS), ANSWERS[form], FinishReason.LENGTH)

    async def scene(completions: Any) -> None:
        for options in ({}, {"tools": [ADD, NOW], "tool_choice": "none"}):
            answer = await completions.create(model=MODEL, messages=QUESTION, **options)
            assert answer.choices[0].message.tool_calls is None
            assert '"arguments": {}' in answer.choices[0].message.content.replace("parameters", "arguments")
            assert "description" not in scripted.prompt
        answer = await completions.create(
            model=MODEL, messages=QUESTION, tools=[ADD, NOW], parallel_tool_calls=False, n=2
        )
        for choice in answer.choices:
            assert [call.function.name for call in choice.message.tool_calls] == ["add"]
            assert choice.finish_reason == "length"

    play(scripted, scene)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [ADD, ADD]}, "tools: the function 'add' is given twice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name: "),
        ({"tool_choice": "auto"}, "tool_choice: needs tools"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "no"}}}, "has no function 'no'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(tmp_path, options, message):
    async def scene(completions: Any) -> None:
        with pytest.raises(openai.BadRequestError, match=message):
            await completions.create(**({"model": MODEL, "messages": QUESTION} | options))

    play(Scripted(make_model(tmp_path, TEMPLATES["hermes"], MARKERS), END), scene)


def test_a_model_whose_format_is_unknown(tmp_path):
    model = make_model(tmp_path, TEMPLATES["unknown"], MARKERS)

    async def refused(completions: Any) -> None:
        with pytest.raises(openai.BadRequestError, match="start the server with --tool-call-parser"):
            await completions.create(model=MODEL, messages=QUESTION, tools=[NOW])

    async def accepted(completions: Any) -> None:
        answer = await completions.create(model=MODEL, messages=QUESTION, tools=[NOW])
        assert answer.choices[0].message.tool_calls[0].function.name == "now"

    play(Scripted(model, END), refused)
    play(Scripted(model, END, tool_call_parser="none"), refused)
    play(Scripted(model, '<tool_call>{"name": "now"}</tool_call>', tool_call_parser="hermes"), accepted)


async def streamed(completions: Any) -> tuple[str, str]:
    """Return the reasoning and the content of a streamed answer to QUESTION."""
    reasoning, content = "", ""
    async for chunk in await completions.create(model=MODEL, messages=QUESTION, stream=True):
        delta = chunk.choices[0].delta
        assert getattr(delta, "reasoning", None) == getattr(delta, "reasoning_content", None)
        reasoning += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
    return reasoning, content


def test_reasoning_before_a_call(tmp_path):
    text = f'<think>\nHm.\n</think>\n\nWell. <tool_call>{{"name": "now"}}</tool_call>{END}'
    scripted = Scripted(make_model(tmp_path, TEMPLATES["hermes"]), text, reasoning_parser="qwen3")

    async def scene(completions: Any) -> None:
        message = (await completions.create(model=MODEL, messages=QUESTION, tools=[NOW])).choices[0].message
        assert (message.reasoning_content, message.content) == ("Hm.\n", "Well. ")
        assert message.tool_calls[0].function.arguments == "{}"
        assert await streamed(completions) == ("Hm.\n", 'Well. <tool_call>{"name": "now"}</tool_call>')

    play(scripted, scene)


@pytest.mark.parametrize(("reasoning_parser", "begin"), [("qwen3", "<think>"), ("deepseek_r1", "")])
def test_tags_that_are_special_tokens_separate_the_reasoning(tmp_path, reasoning_parser, begin):
    """Although special tokens have no text by default."""
    model = make_model(tmp_path, TEMPLATES["unknown"], ("<think>", "</think>"))
    scripted = Scripted(model, f"{begin}why</think>two{END}", reasoning_parser=reasoning_parser)

    async def scene(completions: Any) -> None:
        message = (await completions.create(model=MODEL, messages=QUESTION)).choices[0].message
        assert (message.reasoning_content, message.content) == ("why", "two")
        assert message.reasoning == "why"
        assert await streamed(completions) == ("why", "two")

    play(scripted, scene)


@pytest.mark.parametrize(("reasoning_parser", "begin"), [("qwen3", "<think>\n"), ("deepseek_r1", "")])
def test_an_answer_to_a_grammar_has_its_reasoning_first(tmp_path, reasoning_parser, begin):
    """As in vLLM: the grammar is that of what follows the reasoning."""
    scripted = Scripted(
        make_model(tmp_path, TEMPLATES["hermes"]),
        f'{begin}why</think>\n\n{{"x": 1}}{END}',
        reasoning_parser=reasoning_parser,
    )

    async def scene(completions: Any) -> None:
        for options in (
            {"response_format": {"type": "json_object"}},
            {"extra_body": {"structured_outputs": {"regex": "[a-z]+"}}},
            {"response_format": {"type": "json_object"}, "tools": [ADD]},
        ):
            message = (await completions.create(model=MODEL, messages=QUESTION, **options)).choices[0].message
            assert (message.reasoning_content, message.content) == ("why", '{"x": 1}')
            grammar = scripted.engine.submissions[-1].grammar
            assert grammar is not None
            assert grammar.reasoning == reasoning_parser

    play(scripted, scene)


def test_an_answer_to_a_grammar_can_be_without_reasoning(tmp_path):
    scripted = Scripted(make_model(tmp_path, TEMPLATES["hermes"]), f'{{"x": 1}}{END}', reasoning_parser="qwen3")
    options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "response_format": {"type": "json_object"}}

    async def scene(completions: Any) -> None:
        message = (await completions.create(**options)).choices[0].message
        assert message.content == '{"x": 1}'
        assert not hasattr(message, "reasoning_content")

    play(scripted, scene)


def test_an_answer_to_a_grammar_is_no_call_and_is_streamed_by_one_parser(tmp_path, monkeypatch):
    """In the format llama3_json an object with a name would be a call, and any object would wait for its end."""
    text = '{"name": "add", "confidence": 0.9, "parameters": {"city": "Ulm"}}'
    scripted = Scripted(make_model(tmp_path, TEMPLATES["llama3_json"]), f"{text}{END}")
    options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "response_format": {"type": "json_object"}}
    made: list[AnswerParser] = []
    parser = AnswerFormat.parser

    def note(answers: AnswerFormat, body: ChatCompletionRequest, prompt: Sequence[int]) -> AnswerParser:
        made.append(parser(answers, body, prompt))
        return made[-1]

    async def scene(completions: Any) -> None:
        (choice,) = (await completions.create(**options, tools=[ADD, NOW])).choices
        assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("stop", text, None)
        monkeypatch.setattr(AnswerFormat, "parser", note)
        stream = await completions.create(**options, tools=[ADD, NOW], stream=True)
        pieces = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(piece or "" for piece in pieces) == text
        assert sum(bool(piece) for piece in pieces) > 10
        assert len(made) <= 2, "of the stream, and of the question whether only its text varies"

    play(scripted, scene)


@pytest.mark.parametrize("strict", [False, True])
def test_an_answer_to_a_schema_can_be_calls(tmp_path, form, strict):
    """As at OpenAI: the schema is that of the text; `parse` of the official client sends only strict functions."""
    calls = f"Hm.</think>{ANSWERS[form].removeprefix('Yes. ')}"
    scripted = Scripted(make_model(tmp_path, TEMPLATES[form], MARKERS), f"{calls}{END}", reasoning_parser="deepseek_r1")
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    tools = [{**tool, "function": {**tool["function"], "strict": strict}} for tool in (ADD, NOW)]
    options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "tools": tools, "response_format": response_format}

    async def scene(completions: Any) -> None:
        (choice,) = (await completions.create(**options)).choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert [call.function.name for call in choice.message.tool_calls] == ["add", "now"]
        grammar = scripted.engine.submissions[-1].grammar
        assert grammar is not None
        made = CallGrammar.of(grammar.text)
        assert (made.form, made.answer_schema, grammar.reasoning) == (form, schema, "deepseek_r1")
        names = []
        async for chunk in await completions.create(**options, stream=True):
            names += [call.function.name for call in chunk.choices[0].delta.tool_calls or [] if call.id]
            assert not chunk.choices[0].delta.content
        assert names == ["add", "now"]
        await completions.create(**options, tool_choice="none")
        grammar = scripted.engine.submissions[-1].grammar
        assert grammar is not None
        assert grammar.kind is GrammarKind.JSON

    play(scripted, scene)


def test_forced_calls_precede_a_schema_of_answers(tmp_path):
    """As in vLLM and at OpenAI: the calls come first, and the schema is that of the answer to their results."""
    answer = f"Hm.</think>{LIST_OF_CALLS}{END}"
    scripted = Scripted(make_model(tmp_path, TEMPLATES["hermes"]), answer, reasoning_parser="deepseek_r1")

    async def scene(completions: Any) -> None:
        options = {"model": MODEL, "messages": QUESTION, "tools": [ADD, NOW], "tool_choice": "required"}
        answer = await completions.create(**options, response_format={"type": "json_object"})
        message = answer.choices[0].message
        assert message.reasoning_content == "Hm."
        assert [call.function.name for call in message.tool_calls] == ["add", "now"]
        grammar = scripted.engine.submissions[-1].grammar
        assert grammar is not None
        made = CallGrammar.of(grammar.text)
        assert (made.form, grammar.reasoning, made.answer_schema) == ("list", "deepseek_r1", None)
        with pytest.raises(openai.BadRequestError, match="structured_outputs: is not allowed together"):
            await completions.create(**options, extra_body={"structured_outputs": {"regex": "a"}})

    play(scripted, scene)


LIST_OF_CALLS = '[{"name": "add", "parameters": {"x": 1}}, {"name": "now", "parameters": {}}]'
NAMED_ADD: Any = {"type": "function", "function": {"name": "add"}}


def test_forced_calls_need_no_format(tmp_path):
    scripted = Scripted(make_model(tmp_path, TEMPLATES["unknown"]), f"{LIST_OF_CALLS}{END}", tool_call_parser="none")

    async def scene(completions: Any) -> None:
        options = {"model": MODEL, "messages": QUESTION, "tools": [ADD, NOW], "tool_choice": "required"}
        (choice,) = (await completions.create(**options)).choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        calls = choice.message.tool_calls
        assert [(call.function.name, call.function.arguments) for call in calls] == [("add", '{"x": 1}'), ("now", "{}")]
        assert len({call.id for call in calls}) == 2
        grammar = scripted.engine.submissions[-1].grammar
        assert grammar is not None
        assert (grammar.kind, CallGrammar.of(grammar.text).form) == (GrammarKind.CALLS, "list")
        deltas, reason = [], None
        async for chunk in await completions.create(**options, stream=True):
            reason = chunk.choices[0].finish_reason
            deltas += chunk.choices[0].delta.tool_calls or []
        assert [(delta.index, delta.function.name) for delta in deltas if delta.id] == [(0, "add"), (1, "now")]
        assert not deltas[0].function.arguments, "the name precedes the arguments"
        texts = ["".join(delta.function.arguments for delta in deltas if delta.index == index) for index in range(2)]
        assert (texts, reason) == (['{"x": 1}', "{}"], "tool_calls")

    play(scripted, scene)


def test_a_named_function_has_the_finish_reason_of_a_text(tmp_path):
    model = make_model(tmp_path, TEMPLATES["mistral"], MARKERS)

    async def scene(completions: Any) -> None:
        options = {"model": MODEL, "messages": QUESTION, "tools": [ADD, NOW], "tool_choice": NAMED_ADD}
        (choice,) = (await completions.create(**options)).choices
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments, choice.finish_reason) == ("add", '{"x": 1}', "stop")
        assert len(call.id) == 9, "Mistral's templates accept no other id"

    play(Scripted(model, f'{{"x": 1}}{END}'), scene)


def test_a_forced_call_that_is_cut(tmp_path):
    async def scene(completions: Any) -> None:
        options = {"model": MODEL, "messages": QUESTION, "tools": [ADD, NOW], "tool_choice": "required"}
        (choice,) = (await completions.create(**options)).choices
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments, choice.finish_reason) == ("add", '{"x"', "length")
        (choice,) = (await completions.create(**options, stop='"x"')).choices
        (call,) = choice.message.tool_calls
        assert (call.function.arguments, choice.finish_reason) == ("{", "stop")

    text = LIST_OF_CALLS[: LIST_OF_CALLS.index(": 1")]
    play(Scripted(make_model(tmp_path, TEMPLATES["hermes"]), text, FinishReason.LENGTH), scene)


@pytest.mark.parametrize("reasoning_parser", ["deepseek_r1", "qwen3"])
def test_an_answer_that_continues_a_text_is_no_reasoning(tmp_path, reasoning_parser):
    """The client's text comes after the reasoning, if there was any."""
    answer = ' 2. <tool_call>{"name": "now", "arguments": {}}</tool_call>'
    scripted = Scripted(make_model(tmp_path, TEMPLATES["hermes"]), f"{answer}{END}", reasoning_parser=reasoning_parser)
    begun = [*QUESTION, {"role": "assistant", "content": "It is"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}

    async def scene(completions: Any) -> None:
        made = await completions.create(model=MODEL, messages=begun, tools=[ADD, NOW], extra_body=options)
        (choice,) = made.choices
        assert (choice.message.content, choice.finish_reason) == (" 2. ", "tool_calls")
        assert not hasattr(choice.message, "reasoning_content")
        assert [call.function.name for call in choice.message.tool_calls] == ["now"]
        forced = {**ADD, "function": {**ADD["function"], "strict": True}}
        await completions.create(model=MODEL, messages=begun, tools=[forced], extra_body=options)
        assert reasoning_rule(scripted) == "qwen3"

    play(scripted, scene)


@pytest.mark.parametrize("reasoning_parser", ["deepseek_r1", "qwen3"])
def test_an_answer_that_continues_the_reasoning_ends_it(tmp_path, reasoning_parser):
    model = make_model(tmp_path, TEMPLATES["hermes"])
    scripted = Scripted(model, f" 1.</think>2{END}", reasoning_parser=reasoning_parser)
    begun = [*QUESTION, {"role": "assistant", "content": "<think>1 +"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}

    async def scene(completions: Any) -> None:
        made = await completions.create(model=MODEL, messages=begun, extra_body=options)
        message = made.choices[0].message
        assert (message.reasoning_content, message.content) == (" 1.", "2")

    play(scripted, scene)


SWITCHED = (
    "{{ messages | tojson }}<assistant>"
    "{% if thinking is defined %}{{ '<think>\\n' if thinking else '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
"""A chat template with the variable `thinking`."""


@pytest.mark.parametrize("reasoning_parser", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize("marks", [(), ("<think>", "</think>")])
def test_a_prompt_that_ends_the_reasoning_leaves_none_for_the_answer(tmp_path, reasoning_parser, marks):
    """With deepseek_r1 the whole answer was reasoning, and a grammar began at an end that never came."""
    scripted = Scripted(make_model(tmp_path, SWITCHED, marks), f'{{"x": 1}}{END}', reasoning_parser=reasoning_parser)
    options = {"model": MODEL, "messages": QUESTION, "extra_body": {"chat_template_kwargs": {"thinking": False}}}

    async def scene(completions: Any) -> None:
        for limits in ({}, {"response_format": {"type": "json_object"}}):
            message = (await completions.create(**options, **limits)).choices[0].message
            assert message.content == '{"x": 1}'
            assert not hasattr(message, "reasoning_content")
            chunks = [chunk async for chunk in await completions.create(**options, **limits, stream=True)]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == '{"x": 1}'
        assert reasoning_rule(scripted) == "qwen3"

    play(scripted, scene)


@pytest.mark.parametrize("reasoning_parser", ["deepseek_r1", "qwen3"])
def test_an_answer_begins_within_the_reasoning_that_the_prompt_has_begun(tmp_path, reasoning_parser):
    answer = f'why</think>{{"x": 1}}{END}'
    scripted = Scripted(make_model(tmp_path, SWITCHED), answer, reasoning_parser=reasoning_parser)
    options = {"chat_template_kwargs": {"thinking": True}}

    async def scene(completions: Any) -> None:
        limits: Any = {"response_format": {"type": "json_object"}}
        made = await completions.create(model=MODEL, messages=QUESTION, extra_body=options, **limits)
        message = made.choices[0].message
        assert (message.reasoning_content, message.content) == ("why", '{"x": 1}')
        assert reasoning_rule(scripted) == "deepseek_r1"

    play(scripted, scene)


def test_reasoning_before_forced_calls(tmp_path):
    model = make_model(tmp_path, TEMPLATES["unknown"])
    for choice, answer in (("required", LIST_OF_CALLS), (NAMED_ADD, '{"x": 1}')):
        scripted = Scripted(model, f"Hm. [{{\n</think>\n\n{answer}{END}", reasoning_parser="deepseek_r1")

        async def scene(completions: Any, choice: Any = choice, scripted: Scripted = scripted) -> None:
            answer = await completions.create(model=MODEL, messages=QUESTION, tools=[ADD, NOW], tool_choice=choice)
            message = answer.choices[0].message
            assert (message.reasoning_content, message.content) == ("Hm. [{\n", None)
            assert message.tool_calls[0].function.arguments == '{"x": 1}'
            grammar = scripted.engine.submissions[-1].grammar
            assert grammar is not None
            assert grammar.reasoning == "deepseek_r1"

        play(scripted, scene)


def test_strict_functions_constrain_the_format_of_the_template(tmp_path, form):
    scripted = Scripted(make_model(tmp_path, TEMPLATES[form], MARKERS), f"{ANSWERS[form]}{END}")
    strict: Any = {"type": "function", "function": {**ADD["function"], "strict": True}}

    async def scene(completions: Any) -> None:
        answer = await completions.create(model=MODEL, messages=QUESTION, tools=[strict, NOW])
        assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["add", "now"]
        grammar = scripted.engine.submissions[-1].grammar
        assert grammar is not None
        assert CallGrammar.of(grammar.text).form == form
        for options in ({"tools": [ADD, NOW]}, {"tools": [strict], "tool_choice": "none"}):
            await completions.create(model=MODEL, messages=QUESTION, **options)
            assert scripted.engine.submissions[-1].grammar is None

    play(scripted, scene)


def test_a_grammar_belongs_to_the_api_key_of_its_request(tmp_path):
    keys = frozenset(map(digest, ("one", "two")))
    scripted = Scripted(make_model(tmp_path, TEMPLATES["unknown"], ()), END, api_keys=keys)
    regex = {"structured_outputs": {"regex": "a+"}}

    async def scene(completions: Any) -> None:
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            await completions.create(model=MODEL, messages=QUESTION, extra_headers=headers, extra_body=regex)
        one, two = (submission.grammar for submission in scripted.engine.submissions)
        assert one == two, "both share the compiled grammar"
        assert (one.owner, two.owner) == (digest("one"), digest("two"))

    play(scripted, scene)


@pytest.mark.parametrize("tools", [[], [ADD, NOW]])
def test_each_chunk_of_a_stream_has_the_usage_so_far_on_demand(tmp_path, tools):
    scripted = Scripted(make_model(tmp_path, TEMPLATES["hermes"], MARKERS), f"One.{END}")
    options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "stream": True}
    options |= {"tools": tools} if tools else {}

    async def scene(completions: Any) -> None:
        continuous = {"include_usage": True, "continuous_usage_stats": True}
        chunks = [chunk async for chunk in await completions.create(**options, stream_options=continuous)]
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == [0, 1, 2, 3, 4, 5, 5], "after the role, each token, and at the end"
        assert {chunk.usage.prompt_tokens for chunk in chunks} == {len(scripted.engine.submissions[0].prompt)}
        assert [bool(chunk.choices) for chunk in chunks] == [*[True] * 6, False]
        plain = [chunk async for chunk in await completions.create(**options, stream_options={"include_usage": True})]
        assert [chunk.usage is not None for chunk in plain] == [*[False] * 6, True]
        assert plain[-1].usage == chunks[-1].usage
        without = {"continuous_usage_stats": True}
        chunks = [chunk async for chunk in await completions.create(**options, stream_options=without)]
        assert [chunk.usage for chunk in chunks] == [None] * 6

    play(scripted, scene)
