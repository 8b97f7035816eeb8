"""The parts of a report that changes of a master set."""

from __future__ import annotations

from orca_contract.scheduler import SchedulerKnobs
from orca_operator.actions import PutScheduler, PutTopology
from support.orcadeployments import MINIMAL, context, report


def test_a_change_names_the_part_of_the_report_that_it_sets():
    answer = report(context(MINIMAL))
    assert PutTopology.reported(answer) is answer.topology is not None
    assert PutScheduler("a", SchedulerKnobs()).reported(answer) == answer.scheduler is not None
    assert PutTopology.route != PutScheduler.route


def test_a_change_is_compared_with_the_values_in_force_and_an_omitted_field_with_earlier_changes():
    """A master reports newer fields in `scheduler` only while a change has set them, and all values in `inForce`."""
    before = report(context(MINIMAL))
    answer = before.model_copy(update={
        "scheduler": before.scheduler.model_copy(update={"policy": "priority"}),
        "in_force": before.in_force.model_copy(update={"policy": "priority"}),
    })  # fmt: skip
    for knobs, is_in_force in (
        ({"stall_timeout_seconds": "automatic"}, False),  # the policy would be taken back
        ({"stall_timeout_seconds": "automatic", "policy": "priority"}, True),
        ({"stall_timeout_seconds": 30.0, "policy": "priority"}, False),
        ({"policy": "fcfs"}, False),
    ):
        body = before.scheduler.model_copy(update=knobs)
        assert (PutScheduler("a", body).reported(answer) == body) == is_in_force, knobs
    older = answer.model_copy(update={"in_force": None})
    assert PutScheduler("a", body).reported(older) == older.scheduler
