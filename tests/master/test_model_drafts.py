"""`ModelDrafts`: how many tokens the draft model drafts for a request, and which of them are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.drafting import MOST_CAUGHT_UP
from orca_master.scheduling.draft_costs import DraftCosts
from orca_master.scheduling.drafter import MOST_ACCEPTANCE, num_likely
from orca_master.scheduling.model_drafts import FIRST_ACCEPTANCE, PROBE_INTERVAL, Guesses, ModelDrafts
from support.variants import one_short

CHEAP = DraftCosts(row=0.01, step=0.05, caught_up=0.001)
"""The least acceptance is 0.25 beside one row."""


def drafts(acceptance: float = FIRST_ACCEPTANCE, num_tokens: int = 0) -> ModelDrafts:
    guesses = Guesses()
    guesses.acceptance = acceptance
    return ModelDrafts(guesses, num_tokens)


def wanted(model: ModelDrafts, costs: DraftCosts = CHEAP, rows: int = 1, most: int = 8, num_left: int = 100) -> int:
    return model.wanted(costs, rows, most, num_left)


@given(st.floats(0.01, 1.0), st.floats(0.01, 0.99), st.integers(0, 12))
def test_as_many_tokens_are_likely_as_the_product_of_their_acceptances_allows(acceptance, threshold, most):
    count = num_likely(acceptance, threshold, most)
    assert 0 <= count <= most
    bounded = min(acceptance, MOST_ACCEPTANCE)
    assert bounded**count >= threshold * 0.999 or count == 0
    assert count == most or bounded ** (count + 1) < threshold * 1.001 or acceptance <= threshold


def test_a_draft_is_used_until_a_token_differs_from_it():
    model = drafts(acceptance=0.9)
    model.receive([5, 6, 7])
    assert model.draft(0.3, 8) == (5, 6, 7)
    assert model.draft(0.3, 2) == (5, 6)
    model.append(5)
    assert model.draft(0.3, 8) == (6, 7), "not all of it was computed with the last iteration"
    model.append(9)
    assert model.draft(0.3, 8) == ()


def test_a_draft_ends_with_a_rewind():
    model = drafts(acceptance=0.9)
    model.receive([5, 6, 7])
    model.rewind(40)
    assert (model.draft(0.3, 8), model.num_earlier) == ((), 40)


def test_acceptance_follows_the_guesses_of_the_request_and_begins_with_those_of_all():
    guesses = Guesses()
    right, wrong = ModelDrafts(guesses, 0), ModelDrafts(guesses, 0)
    for _ in range(60):
        right.receive([3])
        right.append(3)
        wrong.receive([3])
        wrong.append(4)
        wrong.append(4)  # without a guess nothing is learned
    assert right.acceptance > 0.95
    assert wrong.acceptance < 0.05
    assert 0.4 < guesses.acceptance < 0.65
    assert ModelDrafts(guesses, 0).acceptance == guesses.acceptance
    assert wanted(right) == 8
    assert wanted(wrong) == 0


@pytest.mark.parametrize(("step", "most", "count"), [(0.3, 8, 3), (0.3, 2, 2), (0.6, 8, 1), (0.8, 8, 0), (9.0, 8, 0)])
def test_as_many_tokens_are_drafted_as_pay(step, most, count):
    assert wanted(drafts(), DraftCosts(row=0.01, step=step, caught_up=0.0), most=most) == count


@pytest.mark.parametrize(("rows", "look_ahead", "count"), [(1, 5.0, 8), (1, 9.0, 0), (16, 5.0, 8), (16, 9.0, 0)])
def test_a_draft_of_all_rows_must_save_more_than_look_ahead(rows, look_ahead, count):
    costs = DraftCosts(row=0.01, step=0.05, caught_up=0.0, look_ahead=look_ahead)
    assert wanted(drafts(acceptance=0.98), costs, rows) == count


@pytest.mark.parametrize("look_ahead", [0.13, 0.47])
def test_answers_that_save_less_than_look_ahead_are_probed(look_ahead):
    guesses, costs = Guesses(), DraftCosts(look_ahead=look_ahead)
    guesses.acceptance = 0.3
    drafted = 0
    for _ in range(100):
        model = ModelDrafts(guesses, 0)
        for _ in range(64):
            if wanted(model, costs):
                model.receive([3])
                drafted += 1
            model.append(3)
    assert drafted > 3_000


@pytest.mark.parametrize(("num_behind", "num_left", "pays"), [(2000, 500, True), (2000, 20, False), (20, 20, True)])
def test_a_prompt_is_caught_up_on_only_for_an_answer_that_is_long_enough(num_behind, num_left, pays):
    model = drafts(acceptance=0.8, num_tokens=num_behind)
    costs = DraftCosts(row=0.05, step=0.1, caught_up=0.01)
    assert (wanted(model, costs, num_left=num_left) > 0) == pays
    model.receive([3])
    assert wanted(model, costs, num_left=num_left) > 0, "once the draft model has it"


def run_iterations(requests: list[ModelDrafts], count: int, truth: int, costs: DraftCosts = CHEAP) -> list[int]:
    """Run `count` iterations, each of which generates the token `truth` of each request; the draft model says 3.

    Return what was wanted, in the order of the requests and iterations.
    """
    counts = []
    for _ in range(count):
        counts += [wanted(model, costs, rows=len(requests)) for model in requests]
        asked = [model for model, number in zip(requests, counts[-len(requests) :], strict=True) if number]
        for model in asked:
            model.note_drafting()
        for model in requests:
            model.append(truth)
        for model in asked:
            model.receive([3])
            assert model.draft(0.3, 8) == (3,), "computed, however unlikely"
            assert model.draft(0.3, 0) == ()
    return counts


@pytest.mark.parametrize("num_requests", [1, 16, 32])
def test_where_drafts_do_not_pay_one_request_is_probed_now_and_then_whatever_the_batch(num_requests):
    guesses = Guesses()
    guesses.acceptance = 0.05
    requests = [ModelDrafts(guesses, 10) for _ in range(num_requests)]
    num_tokens = 40 * PROBE_INTERVAL
    counts = run_iterations(requests, num_tokens // num_requests, truth=4)
    assert set(counts) == {0, 1}
    assert 5 < sum(counts) <= num_tokens / PROBE_INTERVAL


def test_a_request_that_is_far_behind_is_probed_less_often():
    costs = DraftCosts(row=0.01, step=0.05, caught_up=0.005)
    near, far = (run_iterations([drafts(0.05, num_tokens)], 20 * PROBE_INTERVAL, 4, costs) for num_tokens in (0, 4_000))
    assert far.index(1) > 8 * near.index(1) > 0


@dataclass
class Pipeline:
    """Iterations of requests whose guesses are never right.

    Its time, and that of the draft model and of look-ahead, which iterations with drafts and those after them lose.
    """

    guesses: Guesses
    costs: DraftCosts
    time: float = 0.0
    probing: float = 0.0
    num_begun: int = 0
    num_left: int = 100
    behind: dict[ModelDrafts, int] = field(default_factory=dict)
    num_iterations_late: int = 0
    in_flight: tuple[Sequence[ModelDrafts], list[ModelDrafts]] = ((), [])

    def run(self, requests: Sequence[ModelDrafts]) -> None:
        self.send(requests)
        self.receive()

    def send(self, requests: Sequence[ModelDrafts]) -> None:
        rows, costs = len(requests), self.costs
        drafted = sum(bool(model.draft(0.3, 8)) for model in requests)
        asked = [model for model in requests if wanted(model, costs, rows, num_left=self.num_left)]
        for model in asked:
            model.note_drafting()
        self.in_flight = requests, asked
        self.num_iterations_late = 3 if asked else max(0, self.num_iterations_late - 1)
        self.time += costs.iteration_time(rows)
        self.probing += drafted * costs.row + (costs.look_ahead if self.num_iterations_late else 0.0)

    def receive(self) -> None:
        (requests, asked), costs = self.in_flight, self.costs
        for model in requests:
            self.behind[model] = self.behind.get(model, model.num_earlier) + 1
            model.append(4)
        for model in asked:
            num_tokens = min(MOST_CAUGHT_UP, self.behind[model])
            self.behind[model] -= num_tokens
            self.probing += num_tokens * costs.caught_up
            if not self.behind[model]:
                self.probing += costs.step * costs.iteration_time(1)
                self.num_begun += 1
                model.receive([3])


@pytest.mark.parametrize("answer", [2, 20, 60])
@pytest.mark.parametrize("num_tokens", [4, 64, 2_000])
@pytest.mark.parametrize("costs", [(0.01, 0.05, 0.001), (0.1, 0.1, 0.01), (0.4, 0.35, 0.14), (1.0, 0.2, 0.2)])
@pytest.mark.parametrize("num_requests", [1, 16])
@pytest.mark.parametrize("num_pipelines", one_short([1, 3], 3))
def test_probes_take_about_a_hundredth_of_the_time(answer, num_tokens, costs, num_requests, num_pipelines):
    """Whatever rows, steps and prompts cost, also if answers end before the draft model has caught up on the prompt."""
    guesses = Guesses()
    guesses.acceptance = 0.05
    pipelines = [Pipeline(guesses, DraftCosts(*costs, look_ahead=0.1)) for _ in range(num_pipelines)]
    for _ in range(8_000 // (answer * num_requests * num_pipelines) + 1):
        requests = [[ModelDrafts(guesses, num_tokens) for _ in range(num_requests)] for _ in pipelines]
        for _ in range(answer):
            for pipeline, batch in zip(pipelines, requests, strict=True):
                pipeline.send(batch)
            for pipeline in pipelines:
                pipeline.receive()
    assert sum(pipeline.probing for pipeline in pipelines) <= 0.02 * sum(pipeline.time for pipeline in pipelines)


@pytest.mark.parametrize("costs", [(0.01, 0.05, 0.001), (0.1, 0.1, 0.01), (0.4, 0.35, 0.14)])
@pytest.mark.parametrize("num_requests", [1, 16])
def test_answers_of_any_costs_are_probed_at_last(costs, num_requests):
    guesses = Guesses()
    guesses.acceptance = 0.05
    pipeline = Pipeline(guesses, DraftCosts(*costs, look_ahead=0.1))
    for _ in range(40_000 // (40 * num_requests)):
        requests = [ModelDrafts(guesses, 100) for _ in range(num_requests)]
        for _ in range(40):
            pipeline.run(requests)
    assert pipeline.num_begun >= 5


@pytest.mark.parametrize(
    "length", [10, 40, 90, 125, *(pytest.param(length, marks=pytest.mark.exhaustive) for length in range(70, 200, 8))]
)
@pytest.mark.parametrize("num_tokens", [3_000, 8_000])
@pytest.mark.parametrize("costs", [(0.1, 0.1, 0.01), (0.05, 0.1, 0.01)])
@pytest.mark.parametrize("acceptance", one_short([0.7, 0.9]))
def test_answers_that_end_before_the_draft_model_has_caught_up_are_not_drafted_on_for_ever(
    length, num_tokens, costs, acceptance
):
    """They may have many more tokens, as far as the server knows, and no guess ever says that drafts are useless.

    A draft model that has caught up is asked to go on, so guesses end what does not pay.
    """
    guesses = Guesses()
    guesses.acceptance = acceptance
    pipeline = Pipeline(guesses, DraftCosts(*costs, look_ahead=0.13), num_left=1_000)
    for number in range(100):
        model = ModelDrafts(guesses, num_tokens)
        for _ in range(length):
            pipeline.run([model])
        model.note_end()
        if number == 20:
            pipeline.probing = pipeline.time = 0.0
    assert pipeline.probing <= 0.03 * pipeline.time


def test_an_answer_that_is_longer_than_others_is_drafted_on_in_the_end():
    guesses = Guesses()
    guesses.note_length(10)
    model, costs = ModelDrafts(guesses, 1_000), DraftCosts(0.1, 0.1, 0.01)
    model.acceptance = 0.9
    counts = []
    for _ in range(200):
        counts.append(wanted(model, costs, num_left=1_000))
        model.append(3)
    assert not any(counts[:9])
    assert counts[-1] > 0


def test_a_probed_request_that_is_rewound_begins_no_probe_that_costs_too_much():
    guesses = Guesses()
    guesses.acceptance, guesses.num_unguessed = 0.05, 5 * PROBE_INTERVAL - 1
    model, costs = ModelDrafts(guesses, 4), DraftCosts(0.1, 0.1, 0.01, look_ahead=0.13)
    model.append(3)
    assert wanted(model, costs) == 1
    model.note_drafting()
    model.rewind(4_000)
    assert wanted(model, costs) == 0


def test_a_request_without_drafts_is_probed_while_another_has_drafts():
    guesses = Guesses()
    paying, other = ModelDrafts(guesses, 0), ModelDrafts(guesses, 0)
    paying.acceptance, other.acceptance = 0.98, 0.05
    counts = run_iterations([paying, other], 2 * PROBE_INTERVAL, truth=3)
    assert all(counts[::2])
    assert any(counts[1::2])


def test_a_probe_of_a_long_prompt_goes_on_until_the_draft_model_has_caught_up():
    guesses = Guesses()
    guesses.acceptance, guesses.num_unguessed = 0.05, 100 * PROBE_INTERVAL - 1
    pipeline, model = Pipeline(guesses, CHEAP), ModelDrafts(guesses, 1_000)
    for _ in range(5):
        assert pipeline.num_begun == 0
        pipeline.run([model])
    assert pipeline.num_begun == 1
    assert wanted(model) == 0, "the guess is in flight"


@pytest.mark.parametrize("acceptance", [0.05, 0.98])
def test_where_no_draft_can_pay_a_right_probe_is_not_followed_by_others(acceptance):
    """Sixteen rows take nearly all of the processor's multiplications, and a step a third of an iteration."""
    costs = DraftCosts(row=0.4, step=0.35, caught_up=0.14, look_ahead=0.5)
    guesses = Guesses()
    guesses.acceptance = acceptance
    counts = [run_iterations([ModelDrafts(guesses, 4) for _ in range(16)], 40, 3, costs) for _ in range(20)]
    assert 0 < sum(map(sum, counts)) <= 16 * 40 * 20 / PROBE_INTERVAL


def test_a_probe_that_is_right_is_followed_by_others():
    model = drafts(acceptance=0.05)
    counts = run_iterations([model], 4 * PROBE_INTERVAL, truth=3)
    first = counts.index(1)
    assert not any(counts[:first])
    assert counts[first + 1] == 0, "its guess is not known yet"
    assert all(counts[first + 2 :])
    assert counts[-1] == 8


def test_short_answers_notice_that_drafts_are_accepted_again():
    guesses = Guesses()
    guesses.acceptance = 0.05
    counts = [sum(run_iterations([ModelDrafts(guesses, 10)], 40, truth=3)) for _ in range(200)]
    assert counts[-1] > 40


def test_of_a_sequence_too_long_for_the_draft_model_nothing_is_wanted_any_more():
    guesses = Guesses()
    guesses.acceptance = 0.9
    long = ModelDrafts(guesses, 0)
    assert wanted(long) > 0
    long.receive([])
    guesses.acceptance = 0.05
    counts = run_iterations([ModelDrafts(guesses, 0), long], 4 * PROBE_INTERVAL, truth=4)
    assert not any(counts[1::2])
    assert any(counts[::2]), "the other request is probed"
