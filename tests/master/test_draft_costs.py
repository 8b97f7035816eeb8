"""What drafted tokens cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.scheduling.draft_costs import LEAST_ACCEPTANCE, DraftCosts


def test_the_more_a_row_and_a_step_cost_the_surer_a_draft_must_be():
    assert DraftCosts(row=0.01).least_acceptance(1) == LEAST_ACCEPTANCE
    assert DraftCosts(row=0.16).least_acceptance(16) == pytest.approx(2.56 / 3.56)
    assert DraftCosts(row=1.0).least_acceptance(16) < 1
    assert DraftCosts(row=0.1, step=0.5).least_acceptance_of_step(1) == pytest.approx(0.1 / 1.1 + 0.5)
    assert DraftCosts(row=0.1, step=0.5).least_acceptance(1) == LEAST_ACCEPTANCE


@given(st.floats(0.01, 1), st.floats(0, 1), st.floats(0.05, 0.98), st.integers(1, 32), st.integers(1, 8))
def test_a_token_saves_time_exactly_if_it_is_likelier_than_the_least_acceptance(row, step, acceptance, rows, count):
    costs = DraftCosts(row=row, step=step)
    gains = [costs.gain(number, acceptance, rows)[1] for number in (count, count - 1)]
    times = [costs.drafting_time(number, rows) / rows for number in (count, count - 1)]
    saved, least = (gains[0] - times[0]) - (gains[1] - times[1]), row * rows / (1 + row * rows) + step
    assert (saved > 0) == (acceptance**count > least) or acceptance**count == pytest.approx(least)


def test_a_probe_costs_the_tokens_that_are_not_generated_meanwhile():
    costs = DraftCosts(row=0.1, step=0.2, caught_up=0.01, look_ahead=0.3)
    time = 50 * 0.01 + 0.2 * 1.1 + 0.1 + 3 * 0.3
    assert costs.probe_price(50, 1) == pytest.approx(time / 1.1)
    assert costs.probe_price(50, 10) == pytest.approx(10 * time / 2.0)
    assert costs.probe_price(1050, 1) - costs.probe_price(50, 1) == pytest.approx((10 + 4 * 0.3) / 1.1)
