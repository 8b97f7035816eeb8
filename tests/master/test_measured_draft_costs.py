"""The measured costs of rows and of the draft model."""

from __future__ import annotations

import random
from collections import Counter

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
        measured.note_drafting("p", result(0.004, 2, 2))
    assert measured.costs == DraftCosts()


def test_an_iteration_that_takes_much_longer_than_others_of_its_size_changes_nothing():
    """As the first one of each size does, which is recorded: without this a row would seem to cost 0.01."""
    measured, occurred = MeasuredDraftCosts(), Counter[int]()
    for rows in (16, 1, 2, 30, 16, 24, 16, 16) * 6:
        occurred[rows] += 1
        slow = 0.06 if occurred[rows] == 1 or (rows, occurred[rows]) == (1, 5) else 0.0
        measured.note_rows(0.004 + 0.0024 * rows + slow, rows)
    assert measured.costs.row == pytest.approx(0.6, rel=0.01)


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
        seconds = 0.2 * 0.05 * steps * (1 + 0.1 * rows) + 0.001 * prompt
        measured.note_drafting("p", result(seconds, rows + prompt, *[steps] * rows))
    assert measured.costs.step == pytest.approx(0.2, rel=0.1)
    assert measured.costs.caught_up == pytest.approx(0.02, rel=0.3)


def test_a_part_of_a_prompt_without_a_draft_is_measured_too():
    measured = MeasuredDraftCosts()
    for rows in (1, 16) * 20:
        measured.note_rows(0.05 * (1 + 0.1 * rows), rows)
        measured.note_drafting("p", result(0.256, 256))
    assert measured.costs.caught_up == pytest.approx(0.02)
    assert measured.costs.step == DraftCosts().step


@pytest.mark.parametrize("row", [0.02, 0.4, 1.0])
def test_a_step_is_measured_against_an_iteration_of_as_many_rows(row):
    """Steps of one row say what steps of sixteen take, also where these take longer than an iteration without rows."""
    measured = MeasuredDraftCosts()
    for rows in (1, 16) * 20:
        measured.note_rows(0.01 * (1 + row * rows), rows)
        measured.note_drafting("p", result(2 * 0.35 * 0.01 * (1 + row), 1, 2))
    assert measured.costs.step == pytest.approx(0.35)
    assert measured.costs.drafting_time(1, 16) == pytest.approx(0.35 * (1 + 16 * row), rel=0.01)
    for _ in range(100):
        measured.note_drafting("p", result(3 * 0.35 * 0.01 * (1 + 16 * row), 16, *[3] * 16))
    assert measured.costs.step == pytest.approx(0.35)


def test_the_first_iteration_of_each_size_is_no_measure():
    measured = MeasuredDraftCosts()
    for rows in (1, 16) * 20:
        measured.note_rows(0.01 * (1 + 0.4 * rows), rows)
    for rows in (1, 2, 16):
        measured.note_drafting("p", result(1.0, rows, *[1] * rows))
        measured.note_drafting("p", result(0.35 * 0.01 * (1 + 0.4 * rows), rows, *[1] * rows))
    assert measured.costs.step == pytest.approx(0.35)


def test_probes_alone_tell_a_step_from_what_they_catch_up_on():
    """A probe is one token of one request behind many; a step that was measured as too slow becomes cheap again."""
    measured, drawn = MeasuredDraftCosts(), random.Random(1)
    for rows in (1, 16) * 20:
        measured.note_rows(0.01 * (1 + 0.4 * rows), rows)
    for seconds in (0.2, 0.2, 0.2):
        measured.note_drafting("p", result(seconds, 1, 1))
    assert measured.costs.step == MOST
    for _ in range(120):
        behind = drawn.randrange(20, 256)
        measured.note_drafting("p", result(0.35 * 0.014 + 0.0004 * behind, 1 + behind, 1))
    assert measured.costs.step == pytest.approx(0.35, rel=0.3)
    assert measured.costs.caught_up == pytest.approx(0.04, rel=0.1)


def test_a_draft_of_no_token_is_no_row():
    measured, others = MeasuredDraftCosts(), MeasuredDraftCosts()
    for each, lengths in ((measured, (0, 0, 0, 2)), (others, (2,))):
        for rows in (1, 16) * 20:
            each.note_rows(0.01 * (1 + 0.4 * rows), rows)
        for _ in range(3):
            each.note_drafting("p", result(0.012, 1, *lengths))
    assert measured.costs == others.costs


def test_iterations_that_get_faster_with_rows_by_chance_leave_the_costs_within_their_bounds():
    measured = MeasuredDraftCosts()
    for rows in (1, 2) * 20:
        measured.note_rows(0.012 - 0.001 * rows, rows)
        for _ in range(2):
            measured.note_drafting("p", result(0.004, 16, *[1] * 16))
    assert measured.costs.row == LEAST
    assert measured.costs.step == pytest.approx(0.004 / (0.012 * 1.16), rel=0.01)
