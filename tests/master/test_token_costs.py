"""The costs of tokens, fitted to iterations with known costs."""

from __future__ import annotations

import random

import pytest
from orca_master.engine.token_costs import ENOUGH, TokenCosts
from orca_master.scheduling.prompt_budget import PromptBudget

PROMPT, BASE, ROWS = 0.0002, 0.03, 32


def note(costs: TokenCosts, prompt: int, limited: bool = True, rows: int = ROWS, noise: float = 1.0) -> None:
    costs.note(noise * (BASE + PROMPT * prompt), prompt, rows, limited)


def test_nothing_is_known_before_an_iteration_for_which_requests_wait():
    costs = TokenCosts()
    note(costs, 100, limited=False)
    assert costs.costs is None


def test_an_iteration_without_tokens_has_no_cost():
    costs = TokenCosts()
    costs.note(0.1, 0, 0, True)
    assert costs.costs is None
    note(costs, 0)
    assert costs.costs is not None


def test_the_costs_of_mixed_iterations_are_those_that_made_them():
    costs, drawn = TokenCosts(), random.Random(1)
    for _ in range(500):
        note(costs, drawn.choice([0, 0, 0, 300, 2000]), noise=drawn.uniform(0.9, 1.1))
    assert costs.costs == pytest.approx((PROMPT, BASE / ROWS), rel=0.1)


def test_prompts_before_an_overload_tell_the_cost_of_prompts_in_it():
    """The iterations of the overload have only answers at first: prompts would seem as expensive as answers."""
    costs = TokenCosts()
    for _ in range(20):
        note(costs, 500, limited=False, rows=1)
        note(costs, 0, limited=False, rows=1)
    for _ in range(300):
        note(costs, 0)
    assert costs.costs == pytest.approx((PROMPT, BASE / ROWS), rel=1e-6)


def test_iterations_that_are_all_alike_have_one_cost():
    costs = TokenCosts()
    for _ in range(100):
        note(costs, 2016)
    assert costs.costs is not None
    one = (BASE + PROMPT * 2016) / (2016 + ROWS)
    assert costs.costs == pytest.approx((one, one))


def test_only_prompts_have_one_cost():
    costs = TokenCosts()
    for prompt in (100, 900, 1400):
        note(costs, prompt, rows=0)
    assert costs.costs is not None
    assert costs.costs.prompt == costs.costs.generated == pytest.approx((3 * BASE + PROMPT * 2400) / 2400, rel=0.02)


@pytest.mark.parametrize("iterations", [0, 50, 10_000])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5, 4.0])
def test_embeddings_do_not_change_the_cost_of_a_generated_token(iterations, factor):
    """However many iterations have only embeddings since the last answer, and whatever their tokens cost."""
    costs, drawn = TokenCosts(), random.Random(1)
    for _ in range(300):
        note(costs, drawn.choice([0, 300, 2000]))
    for _ in range(iterations):
        prompt = drawn.randrange(700, 900)
        costs.note(BASE + factor * PROMPT * prompt, prompt, 0, limited=True, answers=False)
    assert costs.costs is not None
    assert costs.costs.generated == pytest.approx(BASE / ROWS, rel=0.1)
    if iterations == 10_000:
        assert costs.costs.prompt == pytest.approx(factor * PROMPT, rel=0.1)
    even = costs.even_prompt_budget(ROWS)
    assert even is not None
    assert 0 < even.beside_answers <= even.alone


def test_a_prompt_that_seems_to_save_time_costs_nothing():
    costs = TokenCosts()
    costs.note(0.1, 0, 10, True)
    costs.note(0.05, 1000, 10, True)
    assert costs.costs == pytest.approx((0.0, 0.15 / 20), rel=0.05)


def test_the_costs_follow_a_change_within_the_window():
    costs = TokenCosts()
    for _ in range(1000):
        costs.note(0.1, 0, ROWS, True)
    for _ in range(50):
        costs.note(1.0, 0, ROWS, True)
    assert costs.costs is not None
    assert costs.costs.generated == pytest.approx(1.0 / ROWS, rel=0.2)


def test_the_prompts_of_an_iteration_of_a_given_time():
    costs, drawn = TokenCosts(), random.Random(1)
    assert costs.prompt_tokens_within(0.1) is None, "nothing is measured"
    assert costs.enough_prompt_tokens() is None, "nothing is measured"
    for _ in range(20):
        note(costs, 0)
    assert costs.prompt_tokens_within(0.1) is None, "no iteration had a prompt"
    for _ in range(300):
        note(costs, drawn.choice([0, 0, 0, 300, 2000]), limited=False, noise=drawn.uniform(0.95, 1.05))
    assert costs.prompt_tokens_within(0.1) == pytest.approx((0.1 - BASE) / PROMPT, rel=0.1)
    assert costs.prompt_tokens_within(0.01) == pytest.approx(BASE / PROMPT, rel=0.1), "half of the time"
    assert costs.enough_prompt_tokens() == pytest.approx(ENOUGH * BASE / PROMPT, rel=0.1)


def test_equal_iterations_have_as_many_tokens_of_prompts_as_their_answers_need():
    costs = TokenCosts()
    assert costs.even_prompt_budget(ROWS) is None, "nothing is measured"
    for number in range(300):
        note(costs, 1000 * (number % 2))
    beside, alone, enough = costs.even_prompt_budget(ROWS)
    assert enough is None, "only beside a target"
    assert beside == pytest.approx(500, rel=0.1), "one request with 1,000 tokens begins in every second iteration"
    assert alone == pytest.approx(8 * BASE / PROMPT, rel=0.01)
    assert costs.even_prompt_budget(2 * ROWS).beside_answers == pytest.approx(1000, rel=0.1)


def test_only_prompts_alone_are_cut_before_requests_have_waited():
    costs = TokenCosts()
    for number in range(30):
        note(costs, 1000 * (number % 2), limited=False)
    assert costs.even_prompt_budget(ROWS) == PromptBudget(None, pytest.approx(8 * BASE / PROMPT, rel=0.01))


def test_prompts_have_half_of_the_time_of_equal_iterations_if_answers_are_long():
    costs = TokenCosts()
    for number in range(300):
        note(costs, 50 * (number % 10 == 0))
    assert costs.even_prompt_budget(ROWS).beside_answers == pytest.approx(BASE / PROMPT, rel=0.01)


def test_equal_iterations_leave_the_known_costs_and_follow_the_requests():
    costs = TokenCosts()
    for number in range(100):
        note(costs, 1000 * (number % 2))
    half = BASE / PROMPT
    assert costs.even_prompt_budget(ROWS).alone == pytest.approx(8 * half, rel=0.01)
    for _ in range(3000):
        note(costs, 600, rows=ROWS // 4)
    assert costs.even_prompt_budget(ROWS) == PromptBudget(*[pytest.approx(8 * half, rel=0.01)] * 2)
    for _ in range(3000):
        note(costs, 600)
    assert costs.even_prompt_budget(ROWS) == PromptBudget(
        pytest.approx(600, rel=0.01), pytest.approx(8 * half, rel=0.01)
    )


def test_requests_that_generate_nothing_are_cut_like_prompts_alone():
    """The generated tokens of the past lose their weight, until their share is no number any more."""
    costs = TokenCosts()
    for number in range(20_000):
        note(costs, 500 * (number % 3), rows=ROWS * (number < 10))
    assert costs.even_prompt_budget(ROWS) == PromptBudget(*[pytest.approx(8 * BASE / PROMPT, rel=0.01)] * 2)


def test_the_time_of_an_iteration_is_that_without_prompts_and_its_prompts():
    costs = TokenCosts()
    costs.note(0.02, 0, 4, limited=False)
    assert costs.iteration_seconds(0.02, 0) == pytest.approx(0.02)
    assert costs.iteration_seconds(0.02, 10) == 0.0, "the cost of a prompt's token is not known"
    costs.note(0.12, 100, 4, limited=False)
    assert costs.iteration_seconds(0.02, 0) == pytest.approx(0.02)
    assert costs.iteration_seconds(0.03, 50) == pytest.approx(0.08)
