"""`JsonSpaces`: whitespace ends between two parts of JSON, and nowhere else."""

from __future__ import annotations

import json

import pytest
from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.call_grammar import CallableFunction, CallGrammar
from orca_master.text.json_spaces import MOST_SPACES, SPACES, JsonSpaces
from orca_master.text.token_matcher import NO_LIMITS, MaskMaker
from support.grammars import ll_tokenizer, matcher, tokens_of

VOCABULARY = 300
TOKENIZER = ll_tokenizer(VOCABULARY)
SCHEMA = {"type": "object", "properties": {"k": {}}, "required": ["k"]}
JSON = (GrammarKind.JSON, json.dumps(SCHEMA))


def calls(form: str) -> tuple[GrammarKind, str]:
    return GrammarKind.CALLS, CallGrammar(form, (CallableFunction("f", SCHEMA, "tools"),)).text


def goes_on(grammar: tuple[GrammarKind, str], before: str, spaces: str) -> bool:
    """Whether whitespace may follow an answer, and something else in any case."""
    answer = matcher(TOKENIZER, *grammar)
    for token in tokens_of(before + spaces):
        answer.accept(token)
    mask = MaskMaker(VOCABULARY).masks([answer], [NO_LIMITS])
    assert answer.error == ""
    tokens = [token for token in range(VOCABULARY) if mask[token // 8] >> token % 8 & 1]
    begin_with_space = [TOKENIZER.decode_bytes([token])[:1] in SPACES for token in tokens]
    assert not all(begin_with_space)
    return any(begin_with_space)


@pytest.mark.parametrize(
    ("grammar", "before"),
    [
        *((JSON, before) for before in ("{", '{"k"', '{"k":', '{"k":"v"', '{"k":[1', '{"k":7', '{"k":{"a":true,')),
        (calls("arguments"), '{"k":"v"'),
        (calls("list"), '[{"name":"f","parameters":{"k":7'),
        (calls("hermes"), 'Yes. <tool_call>{"name":"f","arguments":{"k":'),
        (calls("llama3_json"), '{"name":"f","parameters":{'),
    ],
)
@pytest.mark.parametrize("space", [" ", "\n"])
def test_whitespace_ends_between_two_parts_of_json(grammar, before, space):
    assert goes_on(grammar, before, space * (MOST_SPACES - 1))
    assert not goes_on(grammar, before, space * MOST_SPACES)
    assert not goes_on(grammar, before, space * 10 * MOST_SPACES), "whatever an earlier master has accepted"


@pytest.mark.parametrize(
    ("grammar", "before", "space"),
    [
        (JSON, '{"k":"', " "),
        (calls("hermes"), "Text", " "),
        (calls("hermes"), "", "\n"),
        (calls("llama3_json"), "", "\n"),
        ((GrammarKind.REGEX, "a[ \\n]*b"), "a", "\n"),
    ],
)
def test_strings_text_and_other_grammars_keep_theirs(grammar, before, space):
    assert goes_on(grammar, before, space * 2 * MOST_SPACES)


def test_only_the_whitespace_at_the_end_counts():
    spaces, count = JsonSpaces(TOKENIZER), 0
    for token in tokens_of("  a \n\t"):
        count = spaces.after(token, count)
    assert count == 3
