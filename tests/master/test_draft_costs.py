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
    assert DraftCosts(row=0.1, step=0.5).least_acceptance_of_step(1) == pytest.approx(0.6 / 1.1)
    assert DraftCosts(row=0.1, step=0.5).least_acceptance(1) == LEAST_ACCEPTANCE


@given(st.floats(0.01, 1), st.floats(0, 1), st.floats(0.05, 0.98), st.integers(1, 32), st.integers(1, 8))
def test_a_token_saves_time_exactly_if_it_is_likelier_than_the_least_acceptance(row, step, acceptance, rows, count):
    costs = DraftCosts(row=row)
    saved = costs.gain(count, acceptance, rows)[1] - costs.gain(count - 1, acceptance, rows)[1] - step / rows
    least = (row * rows + step) / (1 + row * rows)
    assert (saved > 0) == (acceptance**count > least) or acceptance**count == pytest.approx(least)
