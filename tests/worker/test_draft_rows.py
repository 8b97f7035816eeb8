"""`DraftRows`: which tokens of a row the draft model computes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.draft_rows import Draft, DraftRows


def entries(rows: Sequence[tuple[int, int, list[int], int]], **fields: object) -> pb.Iteration:
    """Return an iteration of entries (row, context, tokens, number of tokens to draft), all of which sample."""
    return pb.Iteration(
        row=[row for row, *_ in rows],
        context_length=[context for _, context, *_ in rows],
        num_tokens=[len(tokens) for _, _, tokens, _ in rows],
        token=[token for _, _, tokens, _ in rows for token in tokens],
        sample=[True] * len(rows),
        num_drafts=[wanted for *_, wanted in rows],
        **fields,
    )


def drafted() -> tuple[DraftRows, list[Draft]]:
    """Return rows after a draft of 5, 6, 7 and 8 behind the tokens 1 to 4."""
    rows = DraftRows(100)
    first = entries([(0, 0, [1, 2, 3], 4)], admission=[pb.Admission(row=0)])
    rows.note(first, [4])
    following, incomplete = rows.catch_up(first, 50)
    drafts = incomplete
    assert list(following.token) == [1, 2, 3, 4]
    for token in (5, 6, 7, 8):
        following, incomplete = rows.advance(incomplete, [token])
        assert list(following.token) == [token] * (token < 8)
    return rows, drafts


@pytest.mark.parametrize(
    ("sampled", "inputs", "position"),
    [
        ([5, 6, 7, 8, 9], [8, 9], 7),  # the last draft was no input of the draft model
        ([5, 6, 7, 1, 1], [1], 7),
        ([5, 1, 1, 1, 1], [1], 5),
        ([1, 6, 7, 8, 9], [1], 4),
    ],
)
def test_accepted_drafts_are_not_computed_again(sampled, inputs, position):
    rows, drafts = drafted()
    assert [draft.tokens for draft in drafts] == [[5, 6, 7, 8]]
    second = entries([(0, 3, [4], 0), (0, 4, [5], 0), (0, 5, [6], 0), (0, 6, [7], 0), (0, 7, [8], 1)])
    rows.note(second, sampled)
    following, _ = rows.catch_up(second, 50)
    assert (list(following.token), list(following.context_length)) == (inputs, [position])


def test_a_draft_ends_with_the_draft_models_longest_sequence_and_then_is_empty():
    rows, lengths = DraftRows(6), []
    for length in range(4, 8):
        context, tokens = (0, [1, 2, 3, 4]) if length == 4 else (length - 1, [length])
        step = entries([(0, context, tokens, 9)], admission=[pb.Admission(row=0)] if length == 4 else [])
        rows.note(step, [length + 1])
        following, drafts = rows.catch_up(step, 50)
        lengths.append([draft.num_tokens for draft in drafts])
        assert bool(following.row) == (lengths[-1] != [0])
    assert lengths == [[2], [1], [0], [0]]
