"""The expected lengths of answers: the product-limit estimate by hand, and the answers that are observed."""

from __future__ import annotations

import random

import pytest
from orca_master.engine.answer_lengths import PERIOD, AnswerLengths, Curve, Observation
from orca_master.scheduling.request import FinishReason, Request

ROUNDING = 1e-6


def stopped(*lengths: int) -> list[Observation]:
    return [Observation(0, length, True) for length in lengths]


def censored(*lengths: int, entered: int = 0) -> list[Observation]:
    return [Observation(entered, length, False) for length in lengths]


def request(length: int, most: int = 1000, number: int = 0, reason: FinishReason | None = None) -> Request:
    return Request(f"r{number}", number, [1], most, generated=[1] * length, finish_reason=reason)


# -- the curve ---------------------------------------------------------------------------------------------------------


def test_without_censoring_the_expected_answer_is_the_mean_of_the_lengths_cut_at_the_maximum():
    curve = Curve(stopped(10, 20, 20, 50))
    for most in (5, 10, 15, 20, 40, 50, 60, 1000):
        assert curve.expected(most) == pytest.approx(sum(min(length, most) for length in (10, 20, 20, 50)) / 4)


def test_censored_answers_are_at_risk_until_their_length():
    """At 10 one of four stops, at 30 one of the two that are left: 0.75 of all are longer than 10, 0.375 than 30."""
    curve = Curve([*stopped(10, 30), *censored(20, 40)])
    assert curve.expected(10) == 10
    assert curve.expected(30) == pytest.approx(10 + 0.75 * 20)
    assert curve.expected(40) == pytest.approx(10 + 0.75 * 20 + 0.375 * 10)


def test_an_answer_that_is_censored_where_others_stop_was_at_risk_there():
    assert Curve([*stopped(10), *censored(10)]).expected(20) == pytest.approx(10 + 0.5 * 10)


def test_the_tail_ends_at_twice_the_longest_observation():
    curve = Curve(censored(16, 5))
    assert curve.expected(32) == 32
    assert curve.expected(32_000) == 32


def test_an_answer_counts_only_from_the_length_at_which_its_observation_began():
    """Two of the answers were not observed at 10, where one of two stops."""
    late = [*stopped(10), *censored(40), *censored(60, 70, entered=30)]
    assert Curve(late).expected(20) == pytest.approx(10 + 0.5 * 10)
    assert Curve([entry._replace(entered=0) for entry in late]).expected(20) == pytest.approx(10 + 0.75 * 10)


def test_one_short_answer_among_many_long_ones_does_not_make_all_short():
    assert Curve([*stopped(1), *censored(*[500] * 256, entered=400)]).expected(1000) > 900


def test_the_rest_of_a_running_answer_is_that_of_the_answers_which_are_longer():
    curve = Curve(stopped(10, 20, 60))
    assert curve.expected_rest(0, 1000) == curve.expected(1000) == pytest.approx(30)
    assert curve.expected_rest(15, 1000) == pytest.approx((5 + 45) / 2)
    assert curve.expected_rest(15, 40) == pytest.approx((5 + 25) / 2)
    assert curve.expected_rest(60, 1000) == 60, "longer than all: as long again"
    assert curve.expected_rest(60, 70) == 10


def test_the_mean_rest_is_half_of_equal_answers_and_more_of_different_ones():
    assert Curve(stopped(100)).expected_rest_at_any_time(1000) == pytest.approx(50)
    assert Curve(censored(100)).expected_rest_at_any_time(80) == pytest.approx(40)
    assert Curve(stopped(10, 90)).expected_rest_at_any_time(1000) == pytest.approx((100 + 8100) / 2 / (2 * 50))


@pytest.mark.parametrize("seed", range(20))
def test_an_expected_answer_is_at_most_its_maximum_and_grows_with_it(seed):
    drawn = random.Random(seed)
    observations = []
    for _ in range(drawn.randint(1, 200)):
        entered = drawn.choice([0, 0, drawn.randrange(300)])
        observations.append(Observation(entered, entered + drawn.randint(1, 300), drawn.random() < 0.5))
    curve = Curve(observations)
    before = 0.0
    for most in range(1, 1500, 7):
        expected = curve.expected(most)
        assert before <= expected <= most + ROUNDING
        assert 0.0 <= curve.expected_rest_at_any_time(most) <= most + ROUNDING
        assert 0.0 <= curve.expected_rest(most // 2, most) <= most - most // 2 + ROUNDING
        before = expected


# -- the observations --------------------------------------------------------------------------------------------------


def expected(lengths: AnswerLengths, most: int, *running: Request) -> float:
    curve = lengths.curve(running)
    assert curve is not None
    return curve.expected(most)


def test_without_a_token_there_is_no_estimate():
    lengths = AnswerLengths()
    lengths.note_end(request(0), [])
    assert lengths.curve([request(0)]) is None


@pytest.mark.parametrize(
    ("most", "reason", "mean"),
    [(1000, FinishReason.STOP, 50), (50, FinishReason.LENGTH, 100), (1000, None, 50)],
    ids=["stop", "its own maximum", "cancelled, as by a stop string"],
)
def test_an_answer_that_reached_its_maximum_has_not_shown_its_length(most, reason, mean):
    lengths = AnswerLengths()
    lengths.note_end(request(50, most, reason=reason), [])
    assert expected(lengths, 1000) == mean


def test_running_answers_are_observed_again_after_some_iterations():
    lengths, running = AnswerLengths(), request(4)
    assert expected(lengths, 1000, running) == 8
    running.generated += [1] * 96
    for _ in range(16):
        lengths.note_iteration()
    assert expected(lengths, 1000, running) == 200


def test_only_the_last_two_periods_count():
    lengths = AnswerLengths()
    for length in (10, 30, 50):
        for number in range(PERIOD):
            lengths.note_end(request(length, number=number), [])
    assert expected(lengths, 1000) == 50, "the present period is empty"
    lengths.note_end(request(90), [])
    assert 50 < expected(lengths, 1000) < 51


def test_an_answer_that_ran_when_the_period_began_has_its_present_length_only():
    """Half of the short answers stop at 10; those that have run for 500 tokens before were not observed there."""
    lengths, old = AnswerLengths(), [request(500, number=1000 + number) for number in range(PERIOD)]
    for period in range(2):
        for number in range(PERIOD):
            lengths.note_end(request(10 if number % 2 else 20, number=period * PERIOD + number), old)
    assert expected(lengths, 20, *old) == pytest.approx(15)
