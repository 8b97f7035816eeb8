"""The knobs of the scheduler as a message."""

from __future__ import annotations

from orca_contract.scheduler import SchedulerKnobs


def test_no_knob_has_a_default_of_its_own():
    """A newer field is left out while it has its default, and a knob that is left out keeps its value."""
    assert {field.default for field in SchedulerKnobs.model_fields.values()} == {None}
