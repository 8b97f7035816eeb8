"""`CompiledGrammar`: copies of a matcher, and new states for all of them. Answers: test_token_matcher.py."""

from __future__ import annotations

import gc
from functools import partial

from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.compiled_grammar import MAX_OWN, CompiledGrammar, OwnStates
from orca_master.text.grammar_process import compiled
from support.grammars import grammar, ll_tokenizer, tokens_of

TOKENIZER = ll_tokenizer(300)


class Answer:
    """An answer, of which only the life matters."""


def test_a_copy_leaves_the_others_as_they_are():
    made = grammar(TOKENIZER, GrammarKind.REGEX, "ab")
    first, second = made.matcher(), made.matcher()
    first.consume_tokens(tokens_of("ab"))
    assert (first.is_stopped(), second.is_stopped(), made.matcher().is_stopped()) == (True, False, False)


def test_shared_states_are_replaced_once_for_all_answers_that_used_the_same():
    made, answers = grammar(TOKENIZER, GrammarKind.REGEX, "ab"), [Answer() for _ in range(3)]
    assert all(made.own_matcher(answer, 0) is not None for answer in answers)
    assert made.generation == 1
    assert made.own_matcher(answers[0], 1) is not None
    assert made.generation == 2
    assert made.matcher().consume_tokens(tokens_of("ab"))


def test_the_end_of_an_answer_frees_its_place():
    own, answers = OwnStates(), [Answer() for _ in range(MAX_OWN)]
    assert all(own.take(answer) for answer in answers)
    assert own.take(answers[0]), "it has a place already"
    assert not own.take(other := Answer())
    del answers[0]
    gc.collect()
    assert own.take(other)


def test_a_grammar_that_cannot_be_compiled_has_an_error():
    assert CompiledGrammar(
        partial(compiled, TOKENIZER, '{"grammars": [{"lark_grammar": "start: missing"}]}'), OwnStates()
    ).error
    assert grammar(TOKENIZER, GrammarKind.REGEX, "ab").error == ""
