"""Which changes are not sent to a master again."""

from __future__ import annotations

from orca_contract.scheduler import SchedulerKnobs
from orca_operator.actions import PutScheduler, PutTopology
from orca_operator.attempts import Attempts
from orca_operator.manifests import boot
from support.orcadeployments import context, report

DEMO = context()
SAID = report(DEMO)
PUT = PutScheduler(DEMO.revision, SchedulerKnobs(max_batch_size=7, token_budget=64, max_queue_depth=9))


def test_what_was_never_tried_is_worth_a_try():
    assert Attempts().futile(PUT, SAID) == ""


def test_a_change_that_took_is_forgotten():
    attempts = Attempts()
    assert attempts.note(PUT, SAID.model_copy(update={"scheduler": PUT.body, "in_force": PUT.body})) == ""
    assert not attempts.futile(PUT, SAID), "somebody has changed it back"


def test_a_change_that_changed_nothing_is_futile_until_the_master_or_the_change_differs():
    attempts = Attempts()
    assert "accepted PUT /scheduler" in attempts.note(PUT, SAID)
    assert attempts.futile(PUT, SAID)
    started = SchedulerKnobs(max_batch_size=1)
    restarted = SAID.model_copy(update={"scheduler": started, "in_force": started})
    assert not attempts.futile(PUT, restarted)
    another = PutScheduler(DEMO.revision, SchedulerKnobs(max_batch_size=8))
    assert not attempts.futile(another, SAID)
    topology = PutTopology(DEMO.revision, boot.topology(DEMO, 2))
    assert not attempts.futile(topology, SAID), "another route"


def test_an_attempt_is_forgotten_when_nothing_is_left_to_change():
    attempts = Attempts()
    attempts.note(PUT, SAID, "422: no")
    attempts.prune([PUT], [DEMO.revision])
    assert attempts.futile(PUT, SAID) == "422: no"
    attempts.prune([], [])
    assert attempts.futile(PUT, SAID) == "422: no", "the master did not answer: nothing is known"
    attempts.prune([], [DEMO.revision])
    assert not attempts.futile(PUT, SAID)
