"""Drafts by what followed the same tokens before."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.scheduling import prompt_lookup
from orca_master.scheduling.drafter import MOST_ACCEPTANCE
from orca_master.scheduling.prompt_lookup import FIRST_ACCEPTANCE, NGRAM, PromptLookup

LOW = 1e-9
"""A threshold that every draft exceeds."""


def latest(tokens: list[int]) -> int | None:
    """Return the place behind the latest earlier occurrence of the last NGRAM tokens, None if there is none."""
    starts = range(len(tokens) - NGRAM - 1, -1, -1)
    return next((start + NGRAM for start in starts if tokens[start : start + NGRAM] == tokens[-NGRAM:]), None)


def place_of(tokens: list[int], num_prompt: int, searched: int) -> int | None:
    """Return the place of the next token: the place that was right goes on, otherwise the latest is searched.

    `searched`: how many tokens of the context each token without a right guess pays for.
    """
    place, paid = latest(tokens[:num_prompt]), 0
    for end in range(num_prompt + 1, len(tokens) + 1):
        if place is not None and tokens[place] == tokens[end - 1]:
            place += 1
            continue
        place, paid = None, paid + searched
        if paid >= end:
            place, paid = latest(tokens[:end]), 0
    return place


def continuation(tokens: list[int], place: int | None, most: int) -> tuple[int, ...]:
    """Return what follows from this place on, which goes on with itself."""
    whole = list(tokens)
    for index in range(0 if place is None else most):
        whole.append(whole[place + index])
    return tuple(whole[len(tokens) :])


@given(
    st.lists(st.sampled_from([0, 1, 256, 65536, 2**24 + 1]), min_size=NGRAM, max_size=60),
    st.integers(1, 9),
    st.integers(1, 70),
)
def test_the_draft_is_the_continuation_that_was_right_or_the_latest(tokens, most, searched):
    """Token ids whose bytes repeat: an occurrence that begins within a token is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_lookup, "SEARCHED_BYTES", 4 * searched)
        lookup = PromptLookup(tokens[:NGRAM])
        for token in tokens[NGRAM:]:
            lookup.append(token)
    lookup.acceptance = 0.9
    assert lookup.draft(LOW, most) == continuation(tokens, place_of(tokens, NGRAM, searched), most)
    for prompt, generated in ((tokens, ()), (array("I", tokens), ()), (tokens[:2], tokens[2:])):
        assert PromptLookup(prompt, generated).draft(LOW, most) == continuation(tokens, latest(tokens), most)


@pytest.mark.parametrize(("num_tokens", "num_searches"), [(16_000, 80), (16_384, 40), (60_000, 20), (130_000, 10)])
def test_the_bytes_that_searches_read_are_bounded_for_each_token(monkeypatch, num_tokens, num_searches):
    """80 tokens that never occurred, after which a right guess needs no search."""
    lookup, searches = PromptLookup(array("I", range(num_tokens))), []
    monkeypatch.setattr(lookup, "_look_up", lambda: searches.append(1))
    for token in range(80):
        lookup.append(200_000 + token)
    assert len(searches) == num_searches


def test_a_place_that_was_right_goes_on_without_a_search(monkeypatch):
    lookup = PromptLookup([*range(100), 7, 8, 9])
    monkeypatch.setattr(lookup, "_look_up", lambda: pytest.fail("searched"))
    for token in range(10, 60):
        assert lookup.draft(LOW, 1) == (token,)
        lookup.append(token)


@pytest.mark.parametrize("tokens", [[], [7], [7, 7], [7, 7, 7]])
def test_few_tokens_have_no_continuation(tokens):
    assert PromptLookup(tokens).draft(LOW, 4) == ()


def test_acceptance_follows_the_guesses_whether_drafted_or_not():
    lookup = PromptLookup([1, 2, 3] * 4)
    assert lookup.acceptance == FIRST_ACCEPTANCE
    for token in [1, 2, 3] * 20:
        lookup.append(token)
    assert lookup.acceptance == pytest.approx(MOST_ACCEPTANCE, abs=0.01)
    right = lookup.acceptance
    lookup.append(9)
    assert lookup.acceptance < right
    wrong = lookup.acceptance
    lookup.append(8)  # nothing was guessed after the 9
    assert lookup.acceptance == wrong


@pytest.mark.parametrize(("threshold", "count"), [(0.6, 0), (0.5, 0), (0.49, 1), (0.25, 2), (0.125, 3), (0.1, 3)])
def test_a_draft_ends_where_its_acceptance_falls_below_the_threshold(threshold, count):
    lookup = PromptLookup([1, 2, 3, 4, 1, 2, 3])
    assert lookup.draft(threshold, 8) == (4, 1, 2, 3)[:count]


def test_tokens_whose_bytes_match_nowhere_at_their_begin_end_the_search():
    """[1, 256, 1, …] has the bytes of zeros between tokens everywhere: the search stops, and drafts nothing."""
    lookup = PromptLookup([0, 0, 0, *[256, 0, 0, 256] * 100, 0, 0])
    lookup.append(0)
    assert len(lookup.draft(LOW, 2)) in (0, 2)
