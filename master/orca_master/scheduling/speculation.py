"""Speculative decoding: drafted tokens that an iteration computes beside the last token of a request. Pure.

They repeat what followed the same tokens before (prompt_lookup.py), or the draft model has drafted them at the end of
the request's last iteration (model_drafts.py).

A draft of k tokens is k more rows of the iteration, and the worker samples a token after each of them. The first token
is valid; each later one is valid if the draft before it equals the token that was sampled there (`num_accepted`). Noise
depends on the position alone, so these are the tokens that a request without drafts would get: greedy and random ones,
with rejection sampling's probabilities for a draft that is a single token (Leviathan et al., ICML 2023).

Keys and values of rejected tokens stay in slots behind the valid ones. The next iterations write each slot before they
read the slot.

Which tokens are worth their time is decided by measured costs (draft_costs.py). With look-ahead an iteration
repeats tokens only if that saves more time, for all of its requests together, than look-ahead does, and the draft model
drafts only if its drafts do; beside a part of a prompt there is no look-ahead to lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orca_master.scheduling.batch import Selection
from orca_master.scheduling.draft_costs import DraftCosts
from orca_master.scheduling.request import Request
from orca_master.scheduling.room import Room
from orca_master.scheduling.scheduler_config import SchedulerConfig

MOST_ROWS = 64
"""Of an iteration with drafts."""


def room_for_drafts(rows: int, num_tokens: int | None) -> int:
    """Return how many drafted tokens fit beside `rows` rows; `num_tokens`: what the token budget leaves, None: any."""
    return MOST_ROWS - rows if num_tokens is None else min(MOST_ROWS - rows, num_tokens)


def draft(request: Request, most: int, rows: int, costs: DraftCosts) -> tuple[int, ...]:
    """Return the tokens to draft for a request whose answer has begun, at most `most`, beside `rows` rows."""
    most = min(most, request.num_free - 1)  # the last token of an answer follows from none of its tokens
    if request.drafter is None or not request.generated or most < 1:
        return ()
    return request.drafter.draft(costs.least_acceptance(rows), most)


def drafts_pay(most_of: Sequence[tuple[Request, int]], room: int, rows: int, costs: DraftCosts) -> bool:
    """Return True if the drafts of an iteration of `rows` rows save more time than they cost.

    `most_of`: its requests, each with the most tokens of its draft; `room`: the most of all drafts.
    """
    saved = 0.0
    for request, most in most_of:
        if request.drafter is not None and (drafted := draft(request, min(most, room), rows, costs)):
            saved += request.drafter.saved(len(drafted), costs, rows)
            room -= len(drafted)
    return saved > costs.look_ahead


def num_wanted(request: Request, num_drafted: int, most: int, rows: int, costs: DraftCosts) -> int:
    """Return how many tokens, up to `most`, the draft model is to draft for a request at the end of an iteration.

    `num_drafted`: tokens that the iteration computes in addition. The next iteration is expected to have as many tokens
    left as this one, and its `rows` answers share MOST_ROWS.
    """
    most = min(most, request.num_free - 2 - num_drafted, MOST_ROWS // max(1, rows) - 1)
    if request.drafter is None or not request.generated or most < 1:
        return 0
    return request.drafter.wanted(costs, rows, most, request.num_left)


def with_drafts(batch: Sequence[Selection], room: Room, config: SchedulerConfig, costs: DraftCosts) -> list[Selection]:
    """Return the selections of a batch, with the drafts that pay and for which it has tokens and blocks left.

    Drafts preempt nobody.
    """
    most = config.speculative_tokens
    rows, selections = len(batch), list[Selection]()
    num_rows = sum(selection.num_tokens for selection in batch)
    answering = [(selection.request, most) for selection in batch if selection.request.is_answering]
    # No iteration is sent ahead behind a part of a prompt.
    costs_now = costs if all(selection.samples for selection in batch) else replace(costs, look_ahead=0.0)
    has_drafts = drafts_pay(answering, room_for_drafts(num_rows, room.num_tokens), rows, costs_now)
    for selection in batch:
        request = selection.request
        left = room_for_drafts(num_rows, room.num_tokens)
        drafted, wanted = tuple[int, ...](), 0
        if request.is_answering:
            if has_drafts:
                drafted = room.hold_draft(request, draft(request, min(most, left), rows, costs))
            wanted = num_wanted(request, len(drafted), min(most, left), rows, costs)
            wanted = room.hold_slots(request, request.num_tokens + len(drafted), wanted)
        num_rows += len(drafted)
        selections.append(selection._replace(draft=drafted, num_drafts=wanted) if drafted or wanted else selection)
    return selections


def num_accepted(drafted: Sequence[int], sampled: Sequence[int]) -> int:
    """Return how many drafted tokens equal the token `sampled` in their place; `sampled` has one more."""
    count = 0
    while count < len(drafted) and drafted[count] == sampled[count]:
        count += 1
    return count
