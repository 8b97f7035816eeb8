"""The number of pipelines with `minReplicas: 0`: none while no request comes, at least one otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.state import EngineState, StateReport
from orca_operator import names
from orca_operator.actions import Apply, PutTopology
from orca_operator.conditions import Situation, find_condition
from orca_operator.idleness import desired_pipelines
from orca_operator.observe import Observed
from orca_operator.plan import plan, unknown_to_master
from orca_operator.status import make_status
from support.orcadeployments import MINIMAL, context, everything, merged, report, view

DELAY = 30
ZERO = merged(MINIMAL, autoscaling={"minReplicas": 0, "maxReplicas": 4, "scaleDownDelaySeconds": DELAY})
DEMO = context(ZERO)


def reporting(pipelines: int = 1, **changes) -> StateReport:
    state = EngineState.SERVING if pipelines else EngineState.RECOVERING
    return report(DEMO, pipelines=pipelines).model_copy(update={"state": state, "idle_seconds": DELAY, **changes})


def observed(said: StateReport | None, held: int = 1) -> Observed:
    """Return a deployment whose StatefulSets have `held` pods each, and whose master reports `said`."""
    children = []
    for child in everything(DEMO).children:
        if child["kind"] == "StatefulSet":
            children.append({**child, "spec": {**child["spec"], "replicas": held}})
        elif held or child["kind"] != "Pod" or names.MASTER in child["metadata"]["name"]:
            children.append(child)
    return Observed(tuple(children), {} if said is None else {DEMO.revision: said})


def desired(said: StateReport | None, held: int = 1, **changes) -> int:
    return desired_pipelines(context(merged(ZERO, **changes)).spec, DEMO.revision, observed(said, held))


@pytest.mark.parametrize(
    ("said", "held", "expected"),
    [
        (reporting(), 1, 0),
        (reporting(idle_seconds=DELAY - 0.1), 1, 1),
        (reporting(idle_seconds=0.0, idle=False), 1, 1),
        (reporting(idle=False), 1, 1),
        (reporting(waiting=1), 1, 1),
        (reporting(running=1), 1, 1),
        (reporting(idle_seconds=None), 1, 1),  # an older master, which rejects an empty topology
        (reporting(state=EngineState.LOADING), 1, 1),
        (reporting(state=EngineState.RECOVERING), 1, 1),
        (reporting(0), 0, 0),
        (reporting(0, idle_seconds=1.0), 0, 0),  # a request came and was refused at once
        (reporting(0, idle=False), 0, 0),  # a request is being refused
        (reporting(0, idle=False, waiting=1), 0, 1),
        (reporting(0, idle=False, waiting=1), 1, 1),
        (reporting(state=EngineState.RECOVERING), 0, 1),  # it wakes up, and the request has left meanwhile
        (None, 1, 1),
        (None, 0, 0),
    ],
)
def test_the_number_by_what_the_master_reports(said, held, expected):
    assert desired(said, held) == expected
    assert desired(said, held, replicas=0) == expected, "an HPA of 0 pipelines acts no more, a request does"
    assert desired(said, held, replicas=3) == 3, "the autoscaler acts above one pipeline"
    assert desired(said, held, suspend=True) == 0
    one = {"minReplicas": 1, "maxReplicas": 4, "scaleDownDelaySeconds": DELAY}
    assert desired(said, held, autoscaling=one) == 1
    assert desired(said, held, autoscaling=one, replicas=0) == 0


def test_a_new_revision_and_a_new_deployment_begin_with_a_pipeline():
    spec = DEMO.spec
    assert desired_pipelines(spec, DEMO.revision, Observed()) == 1
    assert desired_pipelines(spec, "newer1", observed(reporting(0), 0)) == 1
    without_master = [child for child in observed(None, 0).children if child["kind"] != "Pod"]
    assert desired_pipelines(spec, DEMO.revision, Observed(tuple(without_master))) == 1, "the master starts again"


requests = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 20)), max_size=12)
"""Requests: seconds since the one before began, and seconds that it takes."""


@given(requests, st.integers(0, 60), st.integers(1, 20), st.integers(1, 40))
def test_a_history_of_requests(gaps, delay, formation, interval):
    """A model of master and operator, in seconds: passes come every `interval`, and at once with a waiting request.

    No pipeline is removed while a request runs or waits, nor before `delay` without requests; at the end there is none.
    """
    spec = context(merged(ZERO, autoscaling={"minReplicas": 0, "scaleDownDelaySeconds": delay})).spec
    arrivals, at = [], 0
    for gap, length in gaps:
        at += gap
        arrivals.append((at, length))
    waiting: list[int] = []
    held, formed_at, last_end, running_until, next_pass = 1, formation, 0, 0, 0
    for now in range(at + sum(length for _, length in arrivals) + delay + (formation + interval) * 15 + 100):
        waiting += [length for arrival, length in arrivals if arrival == now]
        serves = held and now >= formed_at
        if serves and waiting and now >= running_until:
            running_until = now + sum(waiting)
            waiting = []
        running = now < running_until
        if running or waiting:
            last_end = now + 1
        idle = not running and not waiting
        if now >= next_pass or (held == 0 and waiting):
            next_pass = now + interval
            state = EngineState.SERVING if serves else EngineState.RECOVERING
            said = reporting(
                held,
                state=state,
                idle=idle,
                running=int(running),
                waiting=len(waiting),
                idle_seconds=max(0.0, now - last_end) if idle else 0.0,
            )
            wanted = desired_pipelines(spec, DEMO.revision, observed(said, held))
            assert wanted in (0, 1)
            if wanted == 0:
                assert idle
            if wanted < held:
                assert now - last_end >= delay
            if wanted > held:
                assert waiting, "only a request wakes it up"
                formed_at = now + formation
            held = wanted
    assert held == 0


def actions(said: StateReport | None, held: int) -> tuple[list[PutTopology], dict[str, int]]:
    """Return the changes of the topology, and the replicas of the workloads by kind."""
    made = plan(DEMO, view(observed(said, held)))
    workloads = [action.manifest for action in made if isinstance(action, Apply)]
    return (
        [action for action in made if isinstance(action, PutTopology)],
        {each["kind"]: each["spec"]["replicas"] for each in workloads if each["kind"] in ("StatefulSet", "Deployment")},
    )


def test_the_pipeline_leaves_the_topology_before_its_pods_and_the_master_stays():
    (put,), replicas = actions(reporting(), 1)
    assert put.body.pipelines == []
    assert replicas == {"StatefulSet": 1, "Deployment": 1}, "the master still uses the pods"
    assert actions(reporting(0), 1) == ([], {"StatefulSet": 0, "Deployment": 1})
    assert actions(None, 0) == ([], {"StatefulSet": 0, "Deployment": 1})


def test_a_request_during_the_scale_down_keeps_the_pods():
    """It came after the report by which the pipeline was removed: the next pass adds the pipeline again."""
    (put,), replicas = actions(reporting(0, idle=False, waiting=1), 1)
    assert len(put.body.pipelines) == 1
    assert replicas == {"StatefulSet": 1, "Deployment": 1}


def test_a_waiting_request_wakes_the_deployment_up():
    (put,), replicas = actions(reporting(0, idle=False, waiting=20), 0)
    assert [pipeline.id for pipeline in put.body.pipelines] == [names.pipeline_id(DEMO.revision, 0)]
    assert replicas == {"StatefulSet": 1, "Deployment": 1}


def test_a_master_too_old_to_run_without_pipelines_is_named():
    """FullyApplied has the sentence: with minReplicas 0 such a master keeps a pipeline."""
    old = observed(reporting(contract_version=4, idle_seconds=None))
    (sentence,) = unknown_to_master(DEMO, old)
    assert "too old for autoscaling.minReplicas: 0 and keeps one pipeline" in sentence
    assert unknown_to_master(DEMO, observed(reporting())) == []
    one = context(merged(ZERO, autoscaling={"minReplicas": 1}))
    assert unknown_to_master(one, old) == []


@pytest.mark.parametrize(("ready", "answers"), [(True, True), (False, True), (True, False)])
def test_the_status_has_the_number_and_why(ready, answers):
    """A master that does not answer is not ready, with pipelines or without them."""
    state = observed(reporting(0) if answers else None, 0)
    pod_is_ready, ready = ready, ready and answers
    if not pod_is_ready:
        pods = [{**child, "status": {**child["status"], "conditions": []}} for child in state.of_kind("Pod")]
        state = replace(state, children=(*(child for child in state.children if child["kind"] != "Pod"), *pods))
    found = make_status(Situation("demo", "default", 1, DEMO.spec, DEMO.revision, view(state)), {})
    assert (found["replicas"], found["availableReplicas"], found["pipelines"]) == (0, 0, [])
    condition = find_condition(found, "Ready")
    assert (condition["status"] == "True", condition["reason"] == "ScaledToZero") == (ready, ready)
    assert (find_condition(found, "MasterServing")["status"] == "True") == ready
    assert (find_condition(found, "FullyApplied")["status"]) == "True"
