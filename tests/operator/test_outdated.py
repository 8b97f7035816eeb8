"""Which outdated revisions may end, and in which order their parts do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from orca_contract.state import PipelinePhase
from orca_operator import names
from orca_operator.actions import Delete
from orca_operator.observe import Observed
from orca_operator.outdated import END_SECONDS, engine, is_dispensable, outdated_revisions, shrink
from support.orcadeployments import MINIMAL, NOW, context, everything, merged, pod, report, view

OLD = context(MINIMAL)
NEW = context(merged(MINIMAL, restart={"id": "2"}))


def without_master(observed: Observed, **condition: str) -> Observed:
    """Return the deployment without its master's pod; its Deployment is unavailable since a time."""
    status = {"conditions": [{"type": "Available", "status": "False", **condition}]}
    return Observed(
        tuple(
            {**child, "status": status} if child["kind"] == "Deployment" else child
            for child in observed.children
            if not (child["kind"] == "Pod" and child["metadata"]["labels"][names.ROLE_LABEL] == names.MASTER)
        )
    )


@pytest.mark.parametrize(
    ("seconds", "served", "expected"),
    [(1, False, True), (1, True, False), (600, True, False), (601, True, True)],
    ids=["never served", "just lost", "within the recovery timeout", "given up"],
)
def test_what_served_is_kept_for_the_time_of_a_recovery(seconds, served, expected):
    since = (NOW - timedelta(seconds=seconds)).isoformat()
    observed = without_master(everything(OLD), lastTransitionTime=since)
    serving = OLD.revision if served else "123456"
    assert is_dispensable(NEW, view(observed), OLD.revision, serving) == expected


@pytest.mark.parametrize(("reason", "expected"), [("NewReplicaSetAvailable", False), ("ReplicaSetUpdated", True)])
def test_what_served_beside_the_current_revision_is_kept_too(reason, expected):
    """An edit in the middle of a rollout: the second revision serves in part, and its master restarts."""
    observed = without_master(everything(OLD), lastTransitionTime=(NOW - timedelta(seconds=1)).isoformat())
    for child in observed.children:
        if child["kind"] == "Deployment":
            child["status"]["conditions"].append({"type": "Progressing", "status": "True", "reason": reason})
    assert is_dispensable(NEW, view(observed), OLD.revision, "123456") == expected


def test_only_a_master_that_answers_knows_what_is_down():
    recovering = replace(everything(OLD), reports={OLD.revision: report(OLD, PipelinePhase.RECOVERING)})
    assert engine(view(recovering), OLD.revision).down == {0}
    silent = engine(view(replace(recovering, reports={})), OLD.revision)
    assert (silent.down, silent.recovering) == (frozenset(), False)
    lost = engine(view(without_master(recovering)), OLD.revision)
    assert (lost.down, lost.recovering) == (frozenset(), True)
    assert not engine(view(without_master(recovering)), OLD.revision, dispensable=True).recovering


def test_a_waiting_room_that_fails_its_readiness_probe_for_a_moment_stays():
    asleep = report(OLD, pipelines=0)
    observed = without_master(everything(OLD, pipelines=0))
    unready = Observed((*observed.children, pod(OLD, names.MASTER, ready=False)), {OLD.revision: asleep})
    assert engine(view(unready), OLD.revision).asleep
    assert not engine(view(unready), OLD.revision, dispensable=True).asleep
    assert not engine(view(replace(unready, reports={})), OLD.revision).asleep


def test_a_ready_master_is_never_dispensable():
    """Also without a serving pipeline: the master accepts requests and queues them."""
    recovering = replace(everything(OLD), reports={OLD.revision: report(OLD, PipelinePhase.RECOVERING)})
    assert not is_dispensable(NEW, view(recovering), OLD.revision, "")
    assert engine(view(recovering), OLD.revision, dispensable=True).serving == frozenset()


def test_a_pipeline_serves_only_behind_a_master_that_accepts_requests():
    assert engine(view(everything(OLD)), OLD.revision).serving == {0}
    unready = Observed(
        (*without_master(everything(OLD)).children, pod(OLD, names.MASTER, ready=False)), {OLD.revision: report(OLD)}
    )
    assert engine(view(unready), OLD.revision).serving == frozenset()
    assert engine(view(unready), OLD.revision).held == 1


def test_a_master_without_its_deployment_does_not_serve_any_more():
    """The garbage collector deletes the pod later: until then it is ready, and must not stand in for another one."""
    observed = everything(OLD)
    rest = [child for child in observed.children if child["kind"] != "Deployment"]
    doomed = view(Observed(tuple(rest), observed.reports))
    assert is_dispensable(NEW, doomed, OLD.revision, OLD.revision)
    assert engine(doomed, OLD.revision, dispensable=True).dispensable
    assert engine(doomed, OLD.revision).serving == frozenset()
    (deployment,) = observed.of_kind("Deployment")
    again = {**deployment, "metadata": {**deployment["metadata"], "creationTimestamp": NOW.isoformat()}}
    assert engine(view(Observed((*rest, again), observed.reports)), OLD.revision).serving == frozenset()


def test_workers_go_after_the_drain_of_their_master():
    observed = everything(OLD)
    assert outdated_revisions(NEW, observed) == [OLD.revision]
    assert kinds(shrink(NEW, view(observed), OLD.revision, 0)) == ["Deployment"]
    for late, expected in ((0, []), (END_SECONDS + 1, ["ConfigMap", "StatefulSet"])):
        draining = pod(OLD, names.MASTER)
        ends = NOW - timedelta(seconds=late)
        draining["metadata"]["deletionTimestamp"] = ends.isoformat()
        children = [child for child in without_master(observed).children if child["kind"] != "Deployment"]
        ended = kinds(shrink(NEW, view(Observed((*children, draining))), OLD.revision, 0))
        assert ended == expected, "a master pod that does not end in time is not waited for"


def test_an_ended_master_is_not_deleted_again():
    children = [
        {**child, "metadata": {**child["metadata"], "deletionTimestamp": NOW.isoformat()}}
        if child["kind"] == "Deployment"
        else child
        for child in everything(OLD).children
    ]
    assert kinds(shrink(NEW, view(Observed(tuple(children))), OLD.revision, 0)) == []


def kinds(actions) -> list[str]:
    assert all(isinstance(action, Delete) for action in actions)
    return sorted(action.child["kind"] for action in actions)
