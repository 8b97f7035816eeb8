"""The measured costs of rows and of the draft model."""

from __future__ import annotations

import random

import pytest
from orca_master.engine.measured_draft_costs import LEAST, LOOK_AHEAD, LOOK_AHEAD_SECONDS, MOST, MeasuredDraftCosts
from orca_master.scheduling.draft_costs import DraftCosts
from orca_protos import engine_pb2 as pb


def result(seconds: float, num_caught_up: int, *lengths: int) -> pb.IterationResult:
    drafted = [pb.DraftedTokens(token=[3] * length) for length in lengths]
    return pb.IterationResult(drafting_ns=int(seconds * 1e9), num_caught_up=num_caught_up, drafted=drafted)


@pytest.mark.parametrize("cost", [0.02, 0.2, 0.7])
def test_the_cost_of_a_row_is_that_of_the_iterations(cost):
    measured, drawn = MeasuredDraftCosts(), random.Random(1)
    for _ in range(300):
        rows = drawn.choice([1, 4, 9, 16])
        measured.note_rows(0.05 * (1 + cost * rows) * drawn.uniform(0.98, 1.02), rows)
    assert measured.costs.row == pytest.approx(cost, rel=0.15)


def test_iterations_of_nearly_as_many_rows_change_nothing():
    measured, drawn = MeasuredDraftCosts(), random.Random(1)
    for _ in range(300):
        measured.note_rows(drawn.uniform(0.04, 0.06), drawn.choice([16, 16, 16, 15]))
        measured.note_drafting(result(0.004, 2, 2))
    assert measured.costs == DraftCosts()


def test_the_cost_of_a_row_has_bounds():
    free, full = MeasuredDraftCosts(), MeasuredDraftCosts()
    for rows in (1, 16) * 20:
        free.note_rows(0.05, rows)
        full.note_rows(0.05 * rows, rows)
    assert (free.costs.row, full.costs.row) == (LEAST, MOST)


@pytest.mark.parametrize("constant", [0.02, 0.001, -0.001])
def test_look_ahead_has_its_price_also_where_rows_take_all_of_the_time(constant):
    measured = MeasuredDraftCosts(looks_ahead=True)
    for rows in (1, 16) * 20:
        measured.note_rows(0.02 * rows + constant, rows)
    costs = measured.costs
    assert costs.look_ahead / (1 + 16 * costs.row) == pytest.approx(LOOK_AHEAD_SECONDS / 0.32, rel=0.1)


@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_look_ahead_saves_the_wait_for_the_master_whatever_an_iteration_takes(seconds):
    measured, without = MeasuredDraftCosts(looks_ahead=True), MeasuredDraftCosts()
    assert (measured.costs.look_ahead, without.costs.look_ahead) == (LOOK_AHEAD, 0.0)
    for rows in (1, 16) * 20:
        for each in (measured, without):
            each.note_rows(seconds * (1 + 0.1 * rows), rows)
    assert measured.costs.look_ahead * seconds == pytest.approx(LOOK_AHEAD_SECONDS)
    assert without.costs.look_ahead == 0.0


@pytest.mark.parametrize("long_first", [False, True])
def test_prompts_that_the_draft_model_catches_up_on_have_a_cost_of_their_own(long_first):
    """Also if the first of all drafts is behind a long prompt: a step costs as much as without."""
    measured, drawn = MeasuredDraftCosts(), random.Random(1)
    for number in range(300):
        rows, steps = drawn.choice([1, 4, 9, 16]), drawn.choice([1, 3, 8])
        measured.note_rows(0.05 * (1 + 0.1 * rows), rows)
        prompt = 256 if number % 50 == (0 if long_first else 25) else 0
        measured.note_drafting(result(0.01 * steps + 0.001 * prompt, 2 + prompt, *[steps] * rows))
    assert measured.costs.step == pytest.approx(0.2, rel=0.1)
    assert measured.costs.caught_up == pytest.approx(0.02, rel=0.3)


def test_a_part_of_a_prompt_without_a_draft_is_measured_too():
    measured = MeasuredDraftCosts()
    for rows in (1, 16) * 20:
        measured.note_rows(0.05 * (1 + 0.1 * rows), rows)
        measured.note_drafting(result(0.256, 256))
    assert measured.costs.caught_up == pytest.approx(0.02)
    assert measured.costs.step == DraftCosts().step
