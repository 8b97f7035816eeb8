"""`TokenMatcher` and `MaskMaker`: the state of an answer in its grammar, and masks."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance._lib import LLParserLimits
from orca_master.scheduling.constraint import GrammarKind
from orca_master.text import compiled_grammar, grammar_process, token_matcher
from orca_master.text.token_matcher import NO_LIMITS, MaskMaker, TokenLimits, TokenMatcher
from support.grammars import END, byte_tokenizer, grammar, ll_tokenizer, matcher, tokens_of
from tokenizers import models

VOCABULARY = 300
TOKENIZER = ll_tokenizer(VOCABULARY)
ALL = ((1 << VOCABULARY) - 1).to_bytes(40, "little")


def made(text: str, after: str = "", kind: GrammarKind = GrammarKind.REGEX) -> TokenMatcher:
    result = matcher(TOKENIZER, kind, text)
    for token in tokens_of(after):
        result.accept(token)
    return result


def allowed(mask: bytes) -> set[str]:
    """Return the texts of a mask's tokens, `<end>` for the end of sequence."""
    names = byte_tokenizer()
    tokens = {token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1}
    return {"<end>" if token == END else names.decode([token]) for token in tokens}


@pytest.mark.parametrize(
    ("after", "expected", "complete"),
    [("", {"ab"}, False), ("ab", {"c", "<end>"}, False), ("abc", {"<end>"}, True)],
)
def test_an_end_is_allowed_only_where_the_grammar_may_end(after, expected, complete):
    """Where the text is forced, its usual tokens are: `ab`, not `a`."""
    entry = made("abc?", after)
    (mask,) = [MaskMaker(VOCABULARY).masks([entry], [NO_LIMITS])]
    assert allowed(mask) == expected
    assert (entry.is_complete, entry.error) == (complete, "")


def test_masks_of_several_requests_are_concatenated_and_none_allows_all():
    maker = MaskMaker(VOCABULARY)
    masks = maker.masks([made("x"), None, made("y")], [NO_LIMITS] * 3)
    assert maker.row_bytes == 40
    first, second, third = (masks[start : start + 40] for start in (0, 40, 80))
    assert (allowed(first), allowed(third)) == ({"x"}, {"y"})
    assert second == ALL


def test_banned_tokens_are_left_out_unless_they_are_all():
    maker, banned = MaskMaker(VOCABULARY), frozenset({END, *tokens_of("c"), VOCABULARY + 1000})
    entries = [made("abc?", "ab"), made("ab[cd]?", "ab")]
    masks = maker.masks(entries, [TokenLimits((banned,))] * 2)
    assert allowed(masks[:40]) == {"c", "<end>"}, "nothing else is left"
    assert allowed(masks[40:]) == {"d"}


def test_each_set_of_banned_tokens_counts_by_itself():
    """An answer that is too short to end is no reason for a bad word that can be avoided."""
    (mask,) = [
        MaskMaker(VOCABULARY).masks([made("abc?", "ab")], [TokenLimits((frozenset(tokens_of("c")), frozenset({END})))])
    ]
    assert allowed(mask) == {"<end>"}


def test_without_a_grammar_the_last_token_of_a_vocabulary_is_not_banned():
    """What fills the last word of a mask is no token."""
    maker = MaskMaker(10)
    (mask,) = [maker.masks([None], [TokenLimits((frozenset(range(9)), frozenset({9})))])]
    assert int.from_bytes(mask, "little") == 1 << 9


def test_an_end_of_sequence_completes_a_grammar_that_may_end():
    entry = made("a*", "aa")
    entry.accept(END)
    assert entry.is_complete


def test_every_end_of_sequence_of_the_model_is_allowed_where_the_first_is_and_completes_the_grammar():
    others = (VOCABULARY - 1, VOCABULARY - 20)
    maker = MaskMaker(VOCABULARY)
    entry = TokenMatcher(grammar(TOKENIZER, GrammarKind.REGEX, "ab?"), (END, *others))
    bits = [int.from_bytes(maker.masks([entry], [NO_LIMITS]), "little")]
    entry.accept(tokens_of("a")[0])
    bits.append(int.from_bytes(maker.masks([entry], [NO_LIMITS]), "little"))
    assert [[mask >> token & 1 for token in (END, *others)] for mask in bits] == [[0, 0, 0], [1, 1, 1]]
    entry.accept(others[1])
    assert (entry.is_complete, entry.error) == (True, "")


def test_a_token_that_the_grammar_does_not_allow_is_an_error_and_its_mask_allows_all():
    entry = made("ab")
    entry.accept(tokens_of("x")[0])
    assert not entry.is_complete
    assert entry.error.startswith("the grammar is too complex, or it allows no answer: ")
    entry.accept(tokens_of("a")[0])
    assert MaskMaker(VOCABULARY).masks([entry], [NO_LIMITS]) == ALL


def test_a_character_that_the_vocabulary_lacks_is_an_error_not_a_wrong_answer():
    names = byte_tokenizer().get_vocab()
    numbers = {name: number for number, name in enumerate(sorted(names.keys() - {"x"}))}
    lacking = byte_tokenizer()
    lacking.model = models.BPE(numbers, [("a", "b"), ("{", '"'), ('"', ":")])
    tokenizer = LLTokenizer(lacking.to_str(), n_vocab=VOCABULARY, eos_token=numbers["<end>"])
    entry = matcher(tokenizer, GrammarKind.REGEX, "axb")
    mask = MaskMaker(VOCABULARY).masks([entry], [NO_LIMITS])
    entry.accept(int.from_bytes(mask, "little").bit_length() - 1)
    assert entry.error
    assert not entry.is_complete


def test_the_state_follows_from_the_tokens_alone():
    schema = '{"type": "object", "properties": {"k": {"enum": [1, 12]}}, "required": ["k"]}'
    step_by_step = made(schema, '{"k":1', GrammarKind.JSON)
    whole = TokenMatcher(grammar(TOKENIZER, GrammarKind.JSON, schema), (END,), tokens_of('{"k":1'))
    maker = MaskMaker(VOCABULARY)
    assert maker.masks([step_by_step], [NO_LIMITS]) == maker.masks([whole], [NO_LIMITS])


@pytest.mark.parametrize(("seconds", "fails"), [(0.03, True), (0.002, False)])
def test_an_answer_whose_masks_are_slow_ends_and_others_go_on(seconds, fails, monkeypatch):
    """Only the slow one pays: masks that take long together are measured one by one."""
    clock = 0.0

    class Slow:
        """A matcher for which the clock goes on."""

        def __init__(self, matcher: LLMatcher) -> None:
            self._matcher = matcher

        def __getattr__(self, name: str) -> Any:
            return getattr(self._matcher, name)

        def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
            nonlocal clock
            clock += seconds
            self._matcher.unsafe_compute_mask_ptr(address, size)

    class Executor:
        def __init__(self, num_threads: int) -> None:
            pass

        def unsafe_compute_mask_ptr(self, jobs: list[tuple[Any, int]], address: int, size: int, count: int) -> None:
            for job, place in jobs:
                job.unsafe_compute_mask_ptr(address + place * size, size)

    monkeypatch.setattr(token_matcher, "LLExecutor", Executor)
    monkeypatch.setattr(token_matcher, "thread_time", lambda: clock)
    monkeypatch.setattr(token_matcher, "perf_counter", lambda: clock)
    maker, slow, other = MaskMaker(VOCABULARY), made("[xy]*"), made("[xy]*")
    slow.matcher = cast("LLMatcher", Slow(slow.matcher))
    (token,) = tokens_of("x")
    num_tokens = 0
    while num_tokens < 100 and not slow.error:
        masks = maker.masks([slow, other], [NO_LIMITS] * 2)
        assert masks[40:] == MaskMaker(VOCABULARY).masks([other], [NO_LIMITS])
        assert slow.error or masks[:40] == masks[40:]
        slow.accept(token)
        other.accept(token)
        num_tokens += 1
    assert not other.error
    assert ("too complex" in slow.error) == fails
    assert num_tokens == (21 if fails else 100)


def test_long_strings_of_a_bounded_length_are_answered_whole_by_answers_with_own_states(monkeypatch):
    """Each character adds states to the lexer, which the answers to a grammar share at first; later answers go on."""
    monkeypatch.setattr(grammar_process, "limits", lambda: limits(2_000))
    texts = [
        f"{number} " + "It is a truth universally acknowledged, that a man wants a wife. " * 13 for number in range(4)
    ]
    schema = json.dumps(
        {"type": "object", "properties": {"k": {"type": "string", "maxLength": 900}}, "required": ["k"]}
    )
    made, maker = grammar(TOKENIZER, GrammarKind.JSON, schema), MaskMaker(VOCABULARY)
    answers = [TokenMatcher(made, (END,)) for _ in texts]
    for tokens in zip(*(tokens_of(json.dumps({"k": text})) for text in texts), strict=True):
        masks = maker.masks(answers, [NO_LIMITS] * 4)
        for place, (answer, token) in enumerate(zip(answers, tokens, strict=True)):
            assert masks[40 * place + token // 8] >> token % 8 & 1
            answer.accept(token)
            assert answer.error == ""
    assert all(answer.is_complete for answer in answers)
    assert made.generation == 1
    later = TokenMatcher(made, (END,))
    for token in tokens_of('{"k":"a'):
        assert maker.masks([later], [NO_LIMITS]) != ALL
        later.accept(token)
    assert later.error == ""


@pytest.mark.parametrize("most", [0, 16])
def test_an_answer_whose_states_never_suffice_ends_with_an_error(monkeypatch, most):
    """New states that bring an answer no further are not made for ever, and few answers have states of their own."""
    monkeypatch.setattr(grammar_process, "limits", lambda: limits(500))
    monkeypatch.setattr(compiled_grammar, "MAX_OWN", most)
    made, maker = grammar(TOKENIZER, GrammarKind.JSON, '{"type": "string", "maxLength": 900}'), MaskMaker(VOCABULARY)
    entry, num_tokens = TokenMatcher(made, (END,)), 0
    for token in tokens_of('"' + "some words " * 60):
        maker.masks([entry], [NO_LIMITS])
        entry.accept(token)
        num_tokens += not entry.error
    assert "too many" in entry.error
    assert (num_tokens > 100) == (most > 0)
    later = TokenMatcher(made, (END,))
    later.accept(tokens_of('"')[0])
    maker.masks([later], [NO_LIMITS])
    assert later.error == ""


def limits(max_lexer_states: int) -> LLParserLimits:
    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=100_000,
        max_lexer_states=max_lexer_states,
        max_grammar_size=100_000,
        verbose_errors=False,
    )
