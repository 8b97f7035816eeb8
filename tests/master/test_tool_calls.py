"""ToolCallParser: the calls of each format, and text that only looks like a call, in pieces of any length."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.text import tool_calls
from orca_master.text.call_scanner import CallScanner
from orca_master.text.tool_calls import FORMATS, ToolCallParser, format_of_template

NAMES = ("weather", "add")
WEATHER = '{"name": "weather", "arguments": {"city": "K\\u00f6ln, \\"{[}\\"", "days": [1, {"a": null}]}}'
ADD = '{ "arguments" : {"x":1.5e3 , "y":-2}, "name" : "add" }'
CITY = {"city": 'Köln, "{[}"', "days": [1, {"a": None}]}
Call = tuple[str, object]

CASES: list[tuple[str, str, str, list[Call]]] = [
    ("hermes", "Hello <b>world</b>", "Hello <b>world</b>", []),
    ("hermes", f"<tool_call>\n{WEATHER}\n</tool_call>", "", [("weather", CITY)]),
    (
        "hermes",
        f"Let me see. <tool_call>{WEATHER}</tool_call>\n<tool_call>\n{ADD}\n</tool_call>\n",
        "Let me see. ",
        [("weather", CITY), ("add", {"x": 1500.0, "y": -2})],
    ),
    ("hermes", f"<tool_call>{ADD}</tool_call> Done.", " Done.", [("add", {"x": 1500.0, "y": -2})]),
    ("hermes", "<tool_call>no call</tool_call>", "<tool_call>no call</tool_call>", []),
    ("hermes", '<tool_call>{"name": "nobody"}</tool_call>', '<tool_call>{"name": "nobody"}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "add"}</tool_call>', "", [("add", {})]),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("add", {"x": 1})]),
    ("hermes", '<tool_call>{"name": "add", "arguments": null}</tool_call>', "", [("add", {})]),
    ("hermes", '<tool_call>{"name": "\\ud800"}</tool_call>', '<tool_call>{"name": "\\ud800"}</tool_call>', []),
    ("hermes", '<tool_call>{"name": 5}', '<tool_call>{"name": 5}', []),
    ("hermes", "a <tool_ca", "a <tool_ca", []),
    ("hermes", "  \n", "  \n", []),
    ("llama3_json", '{"name": "add", "parameters": {"x": 1}}', "", [("add", {"x": 1})]),
    ("llama3_json", '\n<|python_tag|>{"name": "add", "parameters": {}}', "", [("add", {})]),
    (
        "llama3_json",
        '{"name": "add", "parameters": {"x": 1}}; {"name": "weather", "parameters": {}}',
        "",
        [("add", {"x": 1}), ("weather", {})],
    ),
    ("llama3_json", '{"name": "Bob", "age": 5}', '{"name": "Bob", "age": 5}', []),
    ("llama3_json", 'I say {"name": "add", "parameters": {}}', 'I say {"name": "add", "parameters": {}}', []),
    ("llama3_json", '{"answer": [1, 2]} is it', '{"answer": [1, 2]} is it', []),
    ("llama3_json", " <|python", " <|python", []),
    (
        "mistral",
        f'[TOOL_CALLS] [{WEATHER}, {{"name": "add", "arguments": {{}}}}]',
        "",
        [("weather", CITY), ("add", {})],
    ),
    (
        "mistral",
        'Well.[TOOL_CALLS]add{"x": {"y": "}"}}[TOOL_CALLS]weather[ARGS]{"city": "a"}',
        "Well.",
        [("add", {"x": {"y": "}"}}), ("weather", {"city": "a"})],
    ),
    ("mistral", "[TOOL_CALLS] none", "[TOOL_CALLS] none", []),
    ("mistral", "[TOOL", "[TOOL", []),
    (
        "mistral",
        '[TOOL_CALLS]add[CALL_ID]a1B2c3D4e[ARGS]{"x": 1}[TOOL_CALLS]weather [CALL_ID] b [ARGS] {}',
        "",
        [("add", {"x": 1}), ("weather", {})],
    ),
    ("mistral", "[TOOL_CALLS]no[CALL_ID]add[ARGS]{}", "[TOOL_CALLS]no[CALL_ID]add[ARGS]{}", []),
]


def parse(form: str, pieces: list[str], parallel: bool = True) -> tuple[str, list[Call]]:
    """Return the text and the calls, whose arguments must be JSON."""
    parser = ToolCallParser(FORMATS[form], NAMES, parallel)
    content, names, arguments = "", [], []
    for place, piece in enumerate(pieces):
        parsed = parser.feed(piece, last=place == len(pieces) - 1)
        content += parsed.content
        for delta in parsed.calls:
            if delta.name is not None:
                names.append(delta.name)
                arguments.append("")
            assert delta.index == len(names) - 1
            arguments[-1] += delta.arguments
    assert parser.num_calls == len(names)
    return content, [(name, json.loads(text)) for name, text in zip(names, arguments, strict=True)]


@pytest.mark.parametrize(("form", "answer", "content", "calls"), CASES, ids=[case[1] for case in CASES])
def test_an_answer_at_once_and_by_characters(form, answer, content, calls):
    assert parse(form, [answer]) == (content, calls)
    assert parse(form, [*answer, ""]) == (content, calls)


@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 200)))
def test_pieces_of_any_length(case, cuts):
    form, answer, content, calls = case
    ends = sorted({min(cut, len(answer)) for cut in cuts})
    pieces = [answer[begin:end] for begin, end in zip([0, *ends], [*ends, len(answer)], strict=True)]
    assert parse(form, pieces) == (content, calls)


@given(
    form=st.sampled_from(sorted(FORMATS)), pieces=st.lists(st.text(alphabet='<tool_ca>{}[],"\\: name;a/'), min_size=1)
)
def test_text_without_a_call_stays_the_same(form, pieces):
    content, calls = parse(form, pieces)
    assert not calls
    assert content == "".join(pieces)


def test_arguments_come_while_they_are_generated():
    parser = ToolCallParser(FORMATS["hermes"], NAMES)
    assert not parser.feed('<tool_call>{"name": "ad').calls
    assert [(delta.name, delta.arguments) for delta in parser.feed('d", "arguments": {"x').calls] == [("add", '{"x')]
    assert [(delta.name, delta.arguments) for delta in parser.feed('": 1').calls] == [(None, '": 1')]
    assert [(delta.name, delta.arguments) for delta in parser.feed("}").calls] == [(None, "}")]
    cut = parser.feed("}", last=True)
    assert (cut.content, cut.calls) == ("", [])


@pytest.mark.parametrize(
    ("end", "ends_with_calls"), [('{"x": ', False), ('{"x": 1}', False), ('{"x": 1}}', True), ('{"x": 1} and}', True)]
)
def test_an_answer_that_ends_within_a_call_does_not_end_with_calls(end, ends_with_calls):
    """A stop string can end it there: a client would make a call with a part of its arguments."""
    parser = ToolCallParser(FORMATS["hermes"], NAMES)
    parser.feed('<tool_call>{"name": "add", "arguments": {}}</tool_call>')
    assert parser.ends_with_calls
    parser.feed('<tool_call>{"name": "add", "arguments": ')
    assert not parser.ends_with_calls
    parser.feed(end, last=True)
    assert parser.ends_with_calls is ends_with_calls
    assert parser.is_within_call is not ends_with_calls


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_an_answer_of_each_format_that_is_cut_within_a_call(form):
    begin = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS][", "llama3_json": ""}[form]
    for by_characters in (False, True):
        parser = ToolCallParser(FORMATS[form], NAMES)
        text = begin + '{"name": "add", "arguments": {"x": 1'
        for piece in text if by_characters else [text]:
            parser.feed(piece)
        parser.feed("", last=True)
        assert (parser.num_calls, parser.ends_with_calls, parser.is_within_call) == (1, False, True)


def test_a_call_without_its_last_brace_ends_at_its_closing():
    answer = '<tool_call>{"name": "add", "arguments": {"x": 1}\n</tool_call>\nDone.'
    for pieces in ([answer], list(answer)):
        parser, content, arguments = ToolCallParser(FORMATS["hermes"], NAMES), "", ""
        for index, piece in enumerate(pieces):
            parsed = parser.feed(piece, last=index == len(pieces) - 1)
            content += parsed.content
            arguments += "".join(call.arguments for call in parsed.calls)
        assert (content, arguments) == ("\nDone.", '{"x": 1}')


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_without_parallel_calls_the_first_is_the_only_one(form):
    answer = {
        "hermes": f"<tool_call>{ADD}</tool_call><tool_call>{WEATHER}</tool_call>",
        "llama3_json": f"{ADD}; {WEATHER}",
        "mistral": f"[TOOL_CALLS][{ADD}, {WEATHER}]",
    }[form]
    assert parse(form, [answer], parallel=False) == ("", [("add", {"x": 1500.0, "y": -2})])


def test_the_template_names_the_format():
    sources = {
        "hermes": "{{ '<tool_call>' }}",
        "llama3_json": "{{ '<|python_tag|>' }}",
        "mistral": "{{ '[TOOL_CALLS]' }}",
    }
    for name, source in sources.items():
        found = format_of_template(source)
        assert found is not None
        assert found.name == name
    assert format_of_template("<tool_call><function=f>") is None
    assert format_of_template("{{ messages }}") is None
    assert format_of_template(None) is None


@pytest.mark.timeout(60)  # of 3 s; held white space that is examined anew with each piece would take minutes
@pytest.mark.parametrize(
    ("form", "begin"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {}}'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {}}</tool_call>'),
        ("mistral", '[TOOL_CALLS]add{"x": 1}'),
    ],
)
def test_white_space_that_is_held_back_is_examined_once(form, begin):
    parser = ToolCallParser(FORMATS[form], NAMES)
    parser.feed(begin)
    for _ in range(10_000):
        assert parser.feed(" " * 16).content == ""
    assert parser.num_calls == 1


def test_ids_are_the_same_whenever_a_response_is_built():
    ids = {FORMATS["hermes"].call_id("chatcmpl-1", choice, call) for choice in range(2) for call in range(2)}
    assert len(ids) == 4
    assert FORMATS["hermes"].call_id("chatcmpl-1", 0, 0) in ids
    assert len(FORMATS["mistral"].call_id("chatcmpl-1", 0, 0)) == 9


@pytest.mark.parametrize("beginning", ["<tool_call>", "<tool_call>\n", '<tool_call>{"a": [', '<tool_call>{"a": "'])
def test_beginnings_of_calls_are_read_once(beginning, monkeypatch):
    """A client can let a model write nothing else; the square of the time would block all other answers."""
    num_scanned: list[int] = []

    class Counted(CallScanner):
        def feed(self, text: str, begin: int = 0) -> int:
            num_scanned.append(super().feed(text, begin) + 1)
            return num_scanned[-1] - 1

    monkeypatch.setattr(tool_calls, "CallScanner", Counted)
    answer = beginning * 200
    parsed = ToolCallParser(FORMATS["hermes"], NAMES).feed(answer, last=True)
    assert (parsed.content, parsed.calls) == (answer, [])
    assert len(num_scanned) <= 2
    assert sum(num_scanned) <= len(answer) + len(num_scanned)


@pytest.mark.timeout(60)  # of 2 s; copies of the rest of the text would take minutes
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "<tool_call>x" * 150_000),
        ("hermes", "<tool_call>" + " " * 1_000_000),
        ("hermes", '<tool_call>{"name": "add", "arguments": {}}</tool_call>' * 20_000),
        pytest.param("llama3_json", '{"name": "add", "parameters": {}};' * 20_000, marks=pytest.mark.long),
        pytest.param("mistral", "[TOOL_CALLS]" + "add{}" * 100_000, marks=pytest.mark.long),
    ],
    ids=["beginnings", "separators", "hermes", "llama3_json", "mistral"],
)
def test_a_long_answer_is_read_in_time_proportional_to_its_length(form, text):
    parsed = ToolCallParser(FORMATS[form], NAMES).feed(text, last=True)
    num_calls = text.count("add")
    assert len([call for call in parsed.calls if call.name == "add"]) == num_calls
    assert parsed.content == ("" if num_calls else text)
