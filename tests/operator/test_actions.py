"""The parts of a report that changes of a master set."""

from __future__ import annotations

from orca_operator.actions import PutScheduler, PutTopology
from support.orcadeployments import MINIMAL, context, report


def test_a_change_names_the_part_of_the_report_that_it_sets():
    answer = report(context(MINIMAL))
    assert PutTopology.reported(answer) is answer.topology is not None
    assert PutScheduler.reported(answer) is answer.scheduler is not None
    assert PutTopology.route != PutScheduler.route
