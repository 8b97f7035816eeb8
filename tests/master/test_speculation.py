"""Which tokens are drafted, and which are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.engine.iteration_message import build_iteration
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.draft_costs import DraftCosts
from orca_master.scheduling.kv_ledger import PagedLedger
from orca_master.scheduling.lookahead import look_ahead
from orca_master.scheduling.model_drafts import Guesses, ModelDrafts
from orca_master.scheduling.prompt_budget import PromptBudget
from orca_master.scheduling.prompt_lookup import PromptLookup
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_master.scheduling.speculation import MOST_ROWS, draft, drafts_pay, num_accepted

PROMPT = (4, 5, 6, 7, 4, 5)


def begun(num_blocks: int = 9, most: int = 8, max_gen_tokens: int = 30, **limits: Any) -> tuple[Scheduler, Request]:
    """Return a scheduler and a request that has generated the token 6, so that 7, 4, 5, 6, … are its draft."""
    scheduler = Scheduler(SchedulerConfig(**{"max_batch_size": 4, **limits}, n_workers=1, speculative_tokens=most),
                          RequestPool(9, 999))  # fmt: skip
    scheduler.add_pipeline("p", PagedLedger(num_blocks))
    scheduler.draft_costs = DraftCosts(row=0.01)
    request = Request("r", 0, PROMPT, max_gen_tokens, drafter=PromptLookup(PROMPT))
    request.drafter.acceptance = 0.95
    scheduler.pool.add(request)
    while not request.generated:
        batch = next_batch(scheduler)
        scheduler.commit(batch, [6] * sum(entry.num_sampled for entry in batch.requests))
    return scheduler, request


def next_batch(scheduler: Scheduler) -> Batch:
    return scheduler.dispatch("p", scheduler.select("p"))


@pytest.mark.parametrize(
    ("sampled", "count"), [([7, 4, 5, 6], 3), ([7, 4, 6, 6], 2), ([7, 5, 5, 6], 1), ([4, 4, 5, 6], 0)]
)
def test_drafts_are_accepted_up_to_the_first_other_token(sampled, count):
    assert num_accepted((7, 4, 5), sampled) == count


def test_a_draft_is_an_entry_per_token_with_the_new_blocks_at_the_last():
    scheduler, request = begun(most=10)
    (entry,) = (batch := next_batch(scheduler)).requests
    assert entry.draft == (7, 4, 5, 6, 7, 4, 5, 6, 7, 4)
    message = build_iteration(1, 2, batch)
    assert list(message.token) == [6, *entry.draft]
    assert list(message.row) == [entry.row] * 11
    assert list(message.context_length) == list(range(len(PROMPT), len(PROMPT) + 11))
    assert list(message.num_tokens) == [1] * 11
    assert list(message.sample) == [True] * 11
    assert list(message.num_new_blocks) == [*[0] * 10, 1], "17 tokens"
    assert scheduler.commit(batch, [7, 4, 5, 9, *[0] * 7]) == [(index, request) for index in range(4)]
    assert request.generated == [6, 7, 4, 5, 9]
    assert (request.num_computed, request.num_uncomputed) == (len(PROMPT) + 4, 1)


@pytest.mark.parametrize(("acceptance", "has_drafts"), [(0.55, False), (0.62, True)])
def test_an_iteration_has_drafts_only_if_they_save_more_than_look_ahead(acceptance, has_drafts):
    scheduler, request = begun()
    scheduler.draft_costs = DraftCosts(row=1.0, look_ahead=0.15)
    assert isinstance(request.drafter, PromptLookup)
    request.drafter.acceptance = acceptance
    assert draft(request, 8, 1, scheduler.draft_costs), "the token alone would pay"
    (entry,) = (batch := next_batch(scheduler)).requests
    assert bool(entry.draft) == has_drafts
    assert bool(look_ahead(scheduler, batch)) == (not has_drafts)


@pytest.mark.parametrize("part", [4, 40])
def test_drafts_cost_no_look_ahead_beside_a_part_of_a_prompt(part):
    """No iteration is sent ahead behind it; one can be if the whole prompt is computed."""
    scheduler, _ = begun(token_budget=40)
    scheduler.draft_costs = DraftCosts(row=0.01, look_ahead=100.0)
    scheduler.prompt_budget = PromptBudget(beside_answers=part)
    scheduler.pool.add(Request("other", 1, (1,) * 20, 9))
    answer, prompt = next_batch(scheduler).requests
    assert prompt.samples == (part == 40)
    assert bool(answer.draft) == (part == 4)


def test_drafts_save_what_all_requests_save_within_their_common_room():
    _, request = begun()
    with_look_ahead, without = DraftCosts(row=0.05, look_ahead=0.15), DraftCosts(row=0.05)
    entries = [(request, 8)] * 16
    assert drafts_pay(entries, 48, 16, with_look_ahead)
    assert not drafts_pay(entries, 1, 16, with_look_ahead), "a draft of one token"
    assert drafts_pay(entries, 1, 16, without)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"max_gen_tokens": 4}, 2),  # two more tokens follow from the drafts, the last of all from the second
        ({"max_gen_tokens": 2}, 0),
        ({"token_budget": 4, "most": 8}, 3),
        ({"num_blocks": 1, "most": 9, "max_gen_tokens": 10}, 8),
        ({"most": 99, "max_gen_tokens": 90}, 25),  # of 7 known tokens a block is held, and the draft takes one more
        ({"most": 99, "max_gen_tokens": 90, "num_held": 4}, 27),  # 0.95 ** 27 is the least acceptance
    ],
)
def test_a_draft_keeps_all_limits(options, count):
    num_held = options.get("num_held", 0)
    scheduler, request = begun(**{name: value for name, value in options.items() if name != "num_held"})
    scheduler.ledger("p").grow(request, num_held * BLOCK_SIZE)
    (entry,) = next_batch(scheduler).requests
    assert len(entry.draft) == count <= MOST_ROWS - 1


def test_a_draft_without_free_blocks_ends_with_those_that_are_held():
    scheduler, request = begun(num_blocks=2, most=16, max_gen_tokens=20)
    other = Request("other", 1, (1,) * 8, BLOCK_SIZE)
    scheduler.pool.add(other)
    batch = next_batch(scheduler)
    assert [entry.request for entry in batch.requests] == [request, other]
    assert len(batch.requests[0].draft) == BLOCK_SIZE - 7
    assert other.num_tokens_in_flight == 8


def test_tokens_after_the_end_of_a_request_are_ignored():
    scheduler, request = begun()
    request.stop_token_ids = frozenset({4})
    batch = next_batch(scheduler)
    assert scheduler.commit(batch, [7, 4, 5, *[0] * 6]) == [(0, request), (1, request)]
    assert request.generated == [6, 7, 4]
    assert scheduler.ledger("p").num_holders == 0


def test_tokens_of_a_rewound_request_are_ignored():
    scheduler, request = begun()
    batch = next_batch(scheduler)
    scheduler.rewind(request)
    assert scheduler.commit(batch, [7, 4, 5, *[0] * 6]) == []
    assert request.generated == [6]


def test_no_more_tokens_are_wanted_of_the_draft_model_than_the_next_iteration_has_room_for():
    scheduler, request = begun(token_budget=16)
    model = request.drafter = ModelDrafts(Guesses(), request.num_tokens)
    model.receive([7, 4, 5, 6])
    scheduler.pool.add(Request("prompt", 1, tuple(range(100)), 4))
    counts = []
    for _ in range(4):
        batch = next_batch(scheduler)
        counts += [(len(entry.draft), entry.num_drafts) for entry in batch.requests if entry.request is request]
        scheduler.commit(batch, [7] * sum(entry.num_sampled for entry in batch.requests))
    assert counts == [(0, 0)] * 4, "the prompt takes all tokens of the budget"
