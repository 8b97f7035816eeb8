"""`CompiledGrammar`: copies of a matcher, and new states for all of them. Answers: test_token_matcher.py."""

from __future__ import annotations

from functools import partial

from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.compiled_grammar import CompiledGrammar
from orca_master.text.grammar_process import compiled
from support.grammars import grammar, ll_tokenizer, tokens_of

TOKENIZER = ll_tokenizer(300)


def test_a_copy_leaves_the_others_as_they_are():
    made = grammar(TOKENIZER, GrammarKind.REGEX, "ab")
    first, second = made.matcher(), made.matcher()
    first.consume_tokens(tokens_of("ab"))
    assert (first.is_stopped(), second.is_stopped(), made.matcher().is_stopped()) == (True, False, False)


def test_states_are_renewed_once_for_all_answers_that_used_the_same():
    made = grammar(TOKENIZER, GrammarKind.REGEX, "ab")
    for _ in range(3):
        made.renew(0)
    assert made.generation == 1
    made.renew(1)
    assert made.generation == 2
    assert made.matcher().consume_tokens(tokens_of("ab"))


def test_a_grammar_that_cannot_be_compiled_has_an_error():
    assert CompiledGrammar(partial(compiled, TOKENIZER, '{"grammars": [{"lark_grammar": "start: missing"}]}')).error
    assert grammar(TOKENIZER, GrammarKind.REGEX, "ab").error == ""
