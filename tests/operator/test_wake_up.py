"""Requests that wait at a master without pipelines wake it up, whatever becomes of the spec meanwhile."""

from __future__ import annotations

import pytest
from orca_contract.state import EngineState
from orca_operator import names
from orca_operator.actions import Check, Delete, PutTopology, Scale
from orca_operator.manifests import boot
from orca_operator.observe import Observed
from orca_operator.plan import plan
from orca_operator.wake_up import wake_ups
from support.orcadeployments import MINIMAL, context, everything, merged, report, view

ZERO = merged(MINIMAL, autoscaling={"minReplicas": 0, "maxReplicas": 4, "scaleDownDelaySeconds": 30})
OLD = context(ZERO)
EDITED = merged(ZERO, restart={"id": "2"})


def asleep(waiting: int = 0, pipelines: int = 0) -> Observed:
    """Return the old revision without pods of workers; its master reports `pipelines`, none of which serves."""
    children = []
    for child in everything(OLD).children:
        if child["kind"] == "StatefulSet":
            children.append({**child, "spec": {**child["spec"], "replicas": pipelines}})
        elif child["kind"] != "Pod" or names.MASTER in child["metadata"]["name"]:
            children.append(child)
    changes = {"state": EngineState.RECOVERING, "waiting": waiting, "idle": not waiting}
    said = report(OLD, "Connecting", pipelines).model_copy(update=changes)
    return Observed(tuple(children), {OLD.revision: said})


def summary(actions) -> tuple[dict[str, int], list[PutTopology], bool]:
    """Return the scaled StatefulSets, the changed topologies, and whether the old master is deleted."""
    return (
        {action.child["metadata"]["labels"][names.REVISION_LABEL]: action.replicas
         for action in actions if isinstance(action, Scale)},
        [action for action in actions if isinstance(action, PutTopology)],
        any(isinstance(action, Delete) and action.child["kind"] == "Deployment" for action in actions),
    )  # fmt: skip


@pytest.mark.parametrize("strategy", [{}, {"type": "Recreate"}, {"maxSurge": 0, "maxUnavailable": 1}])
def test_an_edit_wakes_the_old_revision_whose_requests_wait(strategy):
    """It gets its pipeline from its own rendering, and its master stays until the requests are answered."""
    new = context(merged(EDITED, rolloutStrategy=strategy))
    scaled, (put,), ended = summary(plan(new, view(asleep(waiting=20)), serving_revision=OLD.revision))
    assert (scaled, put.revision, ended) == ({OLD.revision: 1}, OLD.revision, False)
    assert put.body == boot.topology(OLD, 1)
    scaled, puts, ended = summary(plan(new, view(asleep(20, pipelines=1)), serving_revision=OLD.revision))
    assert (scaled, puts, ended) == ({}, [], False), "the pipeline is on its way"


@pytest.mark.parametrize(
    ("strategy", "ends"), [({}, False), ({"type": "Recreate"}, True), ({"maxSurge": 0, "maxUnavailable": 1}, True)]
)
def test_an_edit_without_waiting_requests_keeps_the_waiting_room_if_the_strategy_does(strategy, ends):
    new = context(merged(EDITED, rolloutStrategy=strategy))
    assert summary(plan(new, view(asleep()), serving_revision=OLD.revision)) == ({}, [], ends)


def test_waking_comes_before_what_can_reject_the_edit_and_needs_no_certificate():
    new = context(EDITED)
    actions = plan(new, view(asleep(waiting=1)), has_certificates=False, serving_revision=OLD.revision)
    kinds = [type(action) for action in actions]
    assert kinds.index(Scale) < kinds.index(PutTopology) < kinds.index(Check)


def test_only_waiting_requests_wake_a_master():
    assert wake_ups(asleep(), {OLD.revision}) == ([], [])
    assert wake_ups(asleep(1, pipelines=1), {OLD.revision}) == ([], [])
    assert wake_ups(Observed(asleep(1).children), {OLD.revision}) == ([], [])
    suspended = context(merged(EDITED, suspend=True))
    assert summary(plan(suspended, view(asleep(waiting=1)))) == ({}, [], True), "the user ends it"
