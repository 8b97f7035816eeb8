"""Drafts by what followed the same tokens before."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.scheduling.drafter import MOST_ACCEPTANCE
from orca_master.scheduling.prompt_lookup import FIRST_ACCEPTANCE, NGRAM, PromptLookup

LOW = 1e-9
"""A threshold that every draft exceeds."""


def expected(tokens: list[int], most: int) -> tuple[int, ...]:
    """Return the continuation of the latest earlier occurrence of the last NGRAM tokens, goes on with itself."""
    last = tokens[-NGRAM:]
    for start in range(len(tokens) - NGRAM - 1, -1, -1):
        if tokens[start : start + NGRAM] == last:
            whole = list(tokens)
            for index in range(most):
                whole.append(whole[start + NGRAM + index])
            return tuple(whole[len(tokens) :])
    return ()


@given(st.lists(st.sampled_from([0, 1, 256, 65536, 2**24 + 1]), min_size=NGRAM, max_size=60), st.integers(1, 9))
def test_the_draft_is_the_latest_continuation(tokens, most):
    """Token ids whose bytes repeat: an occurrence that begins within a token is none."""
    lookup = PromptLookup(tokens[:NGRAM])
    for token in tokens[NGRAM:]:
        lookup.append(token)
    lookup.acceptance = 0.9
    assert lookup.draft(LOW, most) == expected(tokens, most)
    for prompt, generated in ((tokens, ()), (array("I", tokens), ()), (tokens[:2], tokens[2:])):
        assert PromptLookup(prompt, generated).draft(LOW, most) == expected(tokens, most)


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
