"""Speculative decoding: drafted tokens that an iteration computes beside the last token of a request. Pure.

A draft of k tokens is k more rows of the iteration, and the worker samples a token after each of them. The first token
is valid; each later one is valid if the draft before it equals the token that was sampled there (`num_accepted`). Noise
depends on the position alone, so these are the tokens that a request without drafts would get: greedy and random ones,
with rejection sampling's probabilities for a draft that is a single token (Leviathan et al., ICML 2023).

Keys and values of rejected tokens stay in slots behind the valid ones. The next iterations write each slot before they
read the slot.

A row takes time. `row_cost` is the time of a row in parts of the time that an iteration without rows would take, so of
`rows` rows each takes the part `row_cost` / (1 + `row_cost` x `rows`) of the iteration, and an iteration generates
`rows` tokens: a draft pays if the token is accepted with more than the probability `least_acceptance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orca_master.scheduling.batch import Selection
from orca_master.scheduling.request import Request
from orca_master.scheduling.room import Room

ROW_COST = 0.1
"""Before `row_cost` has been measured."""
LEAST_ACCEPTANCE = 0.25
"""With drafts an iteration cannot be sent before the result of the previous one is known (lookahead.py)."""
MOST_ROWS = 64
"""Of an iteration with drafts."""


def least_acceptance(rows: int, row_cost: float) -> float:
    """Return the probability of acceptance from which on a drafted token pays beside `rows` others."""
    return max(LEAST_ACCEPTANCE, row_cost * rows / (1 + row_cost * rows))


def room_for_drafts(rows: int, num_tokens: int | None) -> int:
    """Return how many drafted tokens fit beside `rows` rows; `num_tokens`: what the token budget leaves, None: any."""
    return MOST_ROWS - rows if num_tokens is None else min(MOST_ROWS - rows, num_tokens)


def draft(request: Request, most: int, rows: int, row_cost: float) -> tuple[int, ...]:
    """Return the tokens to draft for a request whose answer has begun, at most `most`, beside `rows` rows."""
    most = min(most, request.num_left - 1)  # the last token of an answer follows from none of its tokens
    if request.lookup is None or not request.generated or most < 1:
        return ()
    return request.lookup.draft(least_acceptance(rows, row_cost), most)


def with_drafts(batch: Sequence[Selection], room: Room, most: int, row_cost: float) -> list[Selection]:
    """Return the selections of a batch, with drafts of at most `most` tokens for which it has tokens and blocks left.

    Drafts preempt nobody.
    """
    rows, selections = len(batch), list[Selection]()
    num_rows = sum(selection.num_tokens for selection in batch)
    for selection in batch:
        request = selection.request
        left = room_for_drafts(num_rows, room.num_tokens)
        drafted: tuple[int, ...] = ()
        if request.is_answering:
            drafted = room.hold_draft(request, draft(request, min(most, left), rows, row_cost))
        num_rows += len(drafted)
        selections.append(replace(selection, draft=drafted) if drafted else selection)
    return selections


def num_accepted(drafted: Sequence[int], sampled: Sequence[int]) -> int:
    """Return how many drafted tokens equal the token `sampled` in their place; `sampled` has one more."""
    count = 0
    while count < len(drafted) and drafted[count] == sampled[count]:
        count += 1
    return count
