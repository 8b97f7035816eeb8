"""CallGrammar: accepted and refused answers, and that parsers find no call whose schema excludes its arguments."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache

import jsonschema
import pytest
from llguidance import LLMatcher
from orca_master.endpoint.answer_parts import AnswerParser
from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.call_grammar import ARGUMENTS, LIST, CallableFunction, CallGrammar
from orca_master.text.forced_calls import ArgumentsParser, ListParser
from orca_master.text.grammar_process import compiled, translate
from orca_master.text.reasoning import ReasoningParser
from orca_master.text.tool_calls import FORMATS, ToolCallParser
from support.grammars import END, byte_tokenizer, ll_tokenizer, tokens_of
from support.variants import one_short

MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<think>",
    "</think>",
    "[CALL_ID]",
)
VOCABULARY = 300
NODE = {"type": "object", "properties": {"x": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
NODE |= {"required": ["x"], "additionalProperties": False}
TEXT = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"], "additionalProperties": False}
FUNCTIONS = (
    CallableFunction("add", {"$ref": "#/$defs/node", "$defs": {"node": NODE}, "type": "object"}, "tools.0"),
    CallableFunction("add2", {"type": "object", "additionalProperties": False}, "tools.1"),
    CallableFunction("say", TEXT, "tools.2"),
)
SCHEMAS = {function.name: function.arguments for function in FUNCTIONS}
ADD = '{"name": "add", "parameters": {"x": 1, "next": {"x": 2}}}'
NOW = '{"name":"add2","parameters":{}}'
ADD_, NOW_ = (text.replace("parameters", "arguments") for text in (ADD, NOW))


@cache
def tokenizer(with_markers: bool):
    return ll_tokenizer(VOCABULARY, MARKERS if with_markers else ())


def matcher(form: str, parallel: bool = True, reasoning: str = "", with_markers: bool = False) -> LLMatcher:
    functions = FUNCTIONS[:1] if form == ARGUMENTS else FUNCTIONS
    text = CallGrammar(form, functions, parallel).text
    tokens = tokenizer(with_markers)
    made = compiled(tokens, translate(tokens, GrammarKind.CALLS, text, reasoning))
    assert not made.is_error(), made.get_error()
    return made


def check(made: LLMatcher, accepted: list[list[int]], refused: list[list[int]]) -> None:
    """Assert that answers are accepted, and that the last tokens of others are the first that are refused."""
    for tokens in accepted:
        made.reset()
        assert (made.try_consume_tokens(tokens), made.is_accepting()) == (len(tokens), True), bytes(tokens)
    for tokens in refused:
        made.reset()
        assert made.try_consume_tokens(tokens) == len(tokens) - 1, bytes(tokens)


# Form, calls in parallel, format of reasoning, accepted answers, and texts whose last character is the first refused.
ANSWERS = [
    (LIST, True, "", [f"[{ADD}]", f"[ {ADD} ,\n{NOW}, {ADD} ]"], ["[]", " ", f"[{ADD}]x", '[{"name": "n', "[{}"]),
    (LIST, False, "", [f"[{ADD}]"], [f"[{ADD},"]),
    (LIST, True, "", [], ['[{"name": "add", "parameters": {"x": "', '[{"name": "add2", "parameters": {"']),
    (LIST, True, "qwen3", [f"[{ADD}]", f"\n<think>\n[{{}}]\n</think>\n\n[{ADD}]"], ["[}", "<think></think>x"]),
    (LIST, True, "deepseek_r1", [f"Hm.</think>[{ADD}]", f"<think>Hm.</think>\n\n[{ADD}]"], [f"</think>[{ADD}]x"]),
    (ARGUMENTS, True, "", ['{"x": 1}', '{\n  "x": 1\n}'], ["[", '{"x": 1}{', '{"y']),
    (ARGUMENTS, True, "qwen3", ['{"x": 1}', '<think>{</think>{"x": 1}'], ["<x"]),
    (
        "hermes", True, "",
        ["", "Hi <tool_", f"Hi <tool_call>\n{ADD_}\n</tool_call>\n<tool_call>{NOW_}</tool_call> Bye."],
        ["<tool_call>x", f"<tool_call>{ADD_}<t", '<tool_call>{"name": "say", "arguments": {"s": 1'],
    ),
    (
        "hermes", False, "",
        ["Hi", f"Hi <tool_call>{ADD_}</tool_call>"], [f"<tool_call>{ADD_}</tool_call>x"],
    ),
    (
        "hermes", True, "qwen3",
        ["<think>", "<think><tool_call>x", f" <think>a</think><tool_call>{ADD_}</tool_call>x", "a<think>b"],
        ["<think></think><tool_call>x", "a<tool_call>x", f"<tool_call>{ADD_}</tool_call><think><tool_call>x"],
    ),
    (
        "hermes", True, "deepseek_r1",
        ["", "<tool_call>x", f"<tool_call></think>a<tool_call>{NOW_}</tool_call>b"], ["</think><tool_call>x"],
    ),
    (
        "llama3_json", True, "",
        ["", " ", "Hi", "Hi {x<|python_tag|>x", ADD, f" {ADD}; {NOW}", f"\n<|python_tag|>\n{ADD}"],
        ["{x", " <|python_tag|>x", f"{ADD}x"],
    ),
    ("llama3_json", False, "", [ADD], [f"{ADD};"]),
    ("llama3_json", True, "qwen3", ["<think>{x", f"<think></think>\n{ADD}", f" {ADD}"], ["{x", "<think></think>\n{x"]),
    ("llama3_json", True, "deepseek_r1", ["{x", f"</think>\n{ADD}"], ["</think>\n{x"]),
    (
        "mistral", True, "",
        ["Hi", f"Hi[TOOL_CALLS] [{ADD_}, {NOW_}]", '[TOOL_CALLS]add{"x":1}[TOOL_CALLS]add2[ARGS]{}'],
        ["[TOOL_CALLS]x", '[TOOL_CALLS]add{"y', f"[TOOL_CALLS][{ADD_}]x"],
    ),
    ("mistral", False, "", ["[TOOL_CALLS]add2{}", f"[TOOL_CALLS][{ADD_}]"], [f"[TOOL_CALLS][{ADD_},"]),
    ("mistral", True, "qwen3", ["<think>[TOOL_CALLS]x", "<think></think>[TOOL_CALLS]add2{}"], ["[TOOL_CALLS]x"]),
    (
        "mistral", True, "",
        ['[TOOL_CALLS]add[CALL_ID]a1B2c3D4e[ARGS]{"x":1}[TOOL_CALLS]add2[CALL_ID]2[ARGS]{}'],
        ["[TOOL_CALLS]add[CALL_ID][", "[TOOL_CALLS]add[CALL_ID]{"],
    ),
]  # fmt: skip


# Form, calls in parallel, accepted answers, and texts whose last character is the first refused.
JSON_OR_CALLS = [
    (
        "hermes", True,
        ['{"s": "<tool_call>x"}', f"<tool_call>\n{ADD_}\n</tool_call>\n<tool_call>{NOW_}</tool_call>"],
        ["H", '{"s": "a"}\n', f"<tool_call>{ADD_}</tool_call>x", f"<tool_call>{ADD_}</tool_call>{{"],
    ),
    ("hermes", False, ['{"s": ""}', f"<tool_call>{ADD_}</tool_call>"], [f"<tool_call>{ADD_}</tool_call><"]),
    ("llama3_json", True, ['{"s": "a"}', ADD, f"<|python_tag|>{ADD}; {NOW}"], ["H", '{"x', f"{ADD}x"]),
    ("mistral", True, ['{"s": "a"}', f"[TOOL_CALLS] [{ADD_}]", "[TOOL_CALLS]add2[ARGS]{}"], ["H", "[TOOL_CALLS]x"]),
]  # fmt: skip


@pytest.mark.parametrize("with_markers", [False, True])
@pytest.mark.parametrize(("form", "parallel", "accepted", "refused"), JSON_OR_CALLS)
def test_an_answer_to_a_schema_is_json_or_calls(form, parallel, accepted, refused, with_markers):
    text = CallGrammar(form, FUNCTIONS, parallel, answer_schema=TEXT).text
    assert CallGrammar.of(text).text == text
    tokens = tokenizer(with_markers)
    made = compiled(tokens, translate(tokens, GrammarKind.CALLS, text))
    assert not made.is_error(), made.get_error()
    check(made, list(map(tokens_of, accepted)), list(map(tokens_of, refused)))
    for answer in accepted:
        parsed = ToolCallParser(FORMATS[form], SCHEMAS, parallel, is_constrained=True).feed(answer, last=True)
        assert (bool(parsed.calls), parsed.content) == ((False, answer) if '"s"' in answer else (True, "")), answer


def test_an_answer_like_a_call_without_an_object_of_arguments_is_json():
    """The schema allows it, so it is the answer: as a call it would have no arguments."""
    for answer in ('{"name": "add", "parameters": 7}', '{"name":"add","parameters":"{","x":1}'):
        for pieces in ([answer], [*answer]):
            parser = ToolCallParser(FORMATS["llama3_json"], SCHEMAS, is_constrained=True)
            parsed = [parser.feed(piece, last=place == len(pieces) - 1) for place, piece in enumerate(pieces)]
            assert "".join(part.content for part in parsed) == answer
            assert parser.num_calls == 0


@pytest.mark.parametrize("with_markers", [False, True])
@pytest.mark.parametrize(("form", "parallel", "reasoning", "accepted", "refused"), ANSWERS)
def test_accepted_and_refused_answers(form, parallel, reasoning, accepted, refused, with_markers):
    """Markers are written as text here, also where the tokenizer has tokens for them."""
    made = matcher(form, parallel, reasoning, with_markers)
    check(made, list(map(tokens_of, accepted)), list(map(tokens_of, refused)))


MARKED = [
    ("hermes", "", [f"Hi<tool_call>{ADD_}</tool_call>\n<tool_call>{NOW_}</tool_call>"], ["<tool_call>x", "a[ARGS]"]),
    ("hermes", "qwen3", [f"<think>a</think><tool_call>{ADD_}</tool_call>", "<think>"], ["</think>", "a<think>"]),
    ("hermes", "deepseek_r1", [f"<think>a</think>b<tool_call>{ADD_}</tool_call>", "a"], ["a<think>", "<tool_call>"]),
    ("llama3_json", "", [f"<|python_tag|>{ADD}"], ["<|python_tag|>x", "a<|python_tag|>"]),
    ("mistral", "qwen3", ["<think>a</think>b[TOOL_CALLS]add2[ARGS]{}[TOOL_CALLS]add2{}"], ["[TOOL_CALLS]x", "[ARGS]"]),
    (LIST, "qwen3", [f"<think>a</think>[{ADD}]", f"[{ADD}]"], ["</think>"]),
    (LIST, "deepseek_r1", [f"a</think>[{ADD}]", f"<think></think>[{ADD}]"], [f"[{ADD}]<think>"]),
    (ARGUMENTS, "deepseek_r1", ['</think>{"x":1}'], ["</think>["]),
    ("mistral", "", ["[TOOL_CALLS]add2[CALL_ID]a1B2c3D4e[ARGS]{}"], ["[TOOL_CALLS]add2[CALL_ID][ARGS]"]),
]


@pytest.mark.parametrize(("form", "reasoning", "accepted", "refused"), MARKED)
def test_markers_that_are_tokens(form, reasoning, accepted, refused):
    encode = byte_tokenizer(MARKERS).encode
    made = matcher(form, True, reasoning, with_markers=True)
    check(made, [encode(text).ids for text in accepted], [encode(text).ids for text in refused])


def parser(form: str, parallel: bool, reasoning: str) -> AnswerParser:
    calls = ListParser() if form == LIST else ArgumentsParser(FUNCTIONS[0].name) if form == ARGUMENTS else None
    return AnswerParser(
        ReasoningParser(reasoning) if reasoning else None, calls or ToolCallParser(FORMATS[form], SCHEMAS, parallel)
    )


SNIPPETS = (
    *MARKERS,
    *("{", "}", "[", "]", '"', '"}', '"}}', ": 1", ', "name": "add"', '"arguments": {}', '"parameters": {"x": "', "; "),
    *('{"name": "add", "arguments": {"x": "', '{"name": "say", "parameters": {"s": "', 'say{"s": "', '"arguments": 5}'),
    *(ADD_, NOW_, ADD, NOW, "\\", "a", " ", "\n", "é", '"name": "say", "arguments": {"s": "</think><tool_call>{"'),
    "add[CALL_ID]add2[ARGS]{",
)
"""Parts of answers that look like calls, or pretend to be the end of something."""
SPELLED = [tokens_of(text) for text in SNIPPETS] + [byte_tokenizer(MARKERS).encode(text).ids for text in SNIPPETS]
UNMARKED = ll_tokenizer(VOCABULARY)
BYTES = {
    token: text.encode() if text in MARKERS else UNMARKED.decode_bytes([token])
    for text, token in byte_tokenizer(MARKERS).get_vocab().items()
}


def hostile_answer(made: LLMatcher, rng: random.Random, num_snippets: int) -> str:
    """Return an answer to the grammar, or its beginning, from snippets as far as the grammar allows each."""
    answer = bytearray()
    for _ in range(num_snippets):
        tried = [SPELLED[rng.randrange(len(SPELLED))] for _ in range(rng.choice((1, 1, 20)))]
        tokens = max(tried, key=made.validate_tokens)
        tokens = tokens[: made.validate_tokens(tokens)]
        if not tokens:
            mask = int.from_bytes(made.compute_bitmask(), "little")
            tokens = [token for token in range(END + 1, VOCABULARY) if mask >> token & 1]
            if not tokens:
                break
            tokens = [rng.choice(tokens)]
        assert made.consume_tokens(tokens)
        answer += b"".join(BYTES[token] for token in tokens)
    return answer.decode(errors="ignore")


@pytest.mark.parametrize("reasoning", one_short(["", "qwen3", "deepseek_r1"], "qwen3"))
@pytest.mark.parametrize("form", [LIST, ARGUMENTS, *FORMATS])
def test_no_call_of_a_hostile_answer_escapes_its_schema(form, reasoning):
    num_calls = 0
    matchers = [matcher(form, parallel, reasoning, with_markers=True) for parallel in (False, True)]
    for seed in range(60):
        rng = random.Random(seed)
        parallel = rng.random() < 0.8
        made = matchers[parallel]
        made.reset()
        answer = hostile_answer(made, rng, 40)
        parsing = parser(form, parallel, reasoning)
        cuts = [0, *sorted(rng.choices(range(len(answer) + 1), k=5)), len(answer)]
        names, arguments = [], []
        for begin, end in itertools.pairwise(cuts):
            for delta in parsing.feed(answer[begin:end], last=end == len(answer)).calls:
                if delta.name is not None:
                    names.append(delta.name)
                    arguments.append("")
                arguments[delta.index] += delta.arguments
        assert parallel or len(names) <= 1
        for place, (name, text) in enumerate(zip(names, arguments, strict=True)):
            try:
                value = json.loads(text)
            except ValueError:
                assert place == len(names) - 1, answer  # cut
                continue
            jsonschema.validate(value, SCHEMAS[name])
            num_calls += 1
    assert num_calls > 5
