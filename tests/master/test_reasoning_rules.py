"""Grammars with the reasoning before them: accepted and refused answers, and where the parser finds their content."""

from __future__ import annotations

import json

import pytest
from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.grammar_process import answer, compiled
from orca_master.text.reasoning import REASONING_FORMATS, ReasoningParser
from support.grammars import byte_tokenizer, ll_tokenizer, tokens_of

TAGS = ("<think>", "</think>")
SCHEMA = json.dumps({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
# Kind, text, an answer, and its beginning with a character that is refused.
GRAMMARS = [
    (GrammarKind.JSON, SCHEMA, '{"x": 1}', '{"x": "'),
    (GrammarKind.REGEX, "[ab]+1", "aab1", "ac"),
    (GrammarKind.CHOICE, '["yes", "yard"]', "yes", "yo"),
    (GrammarKind.GRAMMAR, 'start: "<" WORD ">"\nWORD: /[a-z]+/\n', "<ab>", "<A"),
    (GrammarKind.GRAMMAR, 'root ::= "a" answer\nanswer ::= "b" | "c"', "ac", "ad"),
]
THOUGHTS = ("", "x", "{'\n", '<think>{"x": 1}', "</think", "é " * 20)


@pytest.mark.parametrize("with_tags", [False, True])
@pytest.mark.parametrize("form", REASONING_FORMATS)
@pytest.mark.parametrize(("kind", "text", "accepted", "refused"), GRAMMARS)
def test_the_grammar_holds_after_the_reasoning(kind, text, accepted, refused, form, with_tags):
    tokenizer = ll_tokenizer(300, TAGS if with_tags else ())
    made = compiled(tokenizer, answer(tokenizer, {"kind": kind.value, "text": text, "reasoning": form})["grammar"])
    assert not made.is_error(), made.get_error()
    encodings = [tokens_of] + [lambda text: byte_tokenizer(TAGS).encode(text).ids] * with_tags
    for encode in encodings:
        for thoughts in THOUGHTS:
            for begin in ("<think>", " \n<think>") if form == "qwen3" else ("", "<think>"):
                if encode is not tokens_of and "<think>" in thoughts:
                    continue  # a second tag, as a token
                for end in ("</think>", "</think>\n\n"):
                    reasoned = f"{begin}{thoughts}{end}"
                    made.reset()
                    tokens = encode(reasoned) + tokens_of(accepted)
                    assert (made.try_consume_tokens(tokens), made.is_accepting()) == (len(tokens), True), reasoned
                    made.reset()
                    tokens = encode(reasoned) + tokens_of(refused)
                    assert made.try_consume_tokens(tokens) == len(tokens) - 1, reasoned
                    assert ReasoningParser(form).feed(reasoned + accepted, last=True)[1] == accepted
    made.reset()
    tokens = tokens_of(f"{'<think>' if form == 'qwen3' else ''}x")
    assert (made.try_consume_tokens(tokens), made.is_accepting()) == (len(tokens), False), "it has to answer"
    made.reset()
    tokens = tokens_of(accepted)
    made.try_consume_tokens(tokens)
    assert made.is_accepting() == (form == "qwen3"), "without reasoning"


def test_an_invalid_grammar_is_refused_with_its_own_reason():
    tokenizer = ll_tokenizer(300)
    frames = [{"kind": "json", "text": '{"uniqueItems": true}', "reasoning": form} for form in ("", *REASONING_FORMATS)]
    errors = {answer(tokenizer, frame)["error"] for frame in frames}
    assert len(errors) == 1
    assert "uniqueItems" in errors.pop()
