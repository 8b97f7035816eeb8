"""Which revisions sleep, wake up, or stay, with `minReplicas: 0`; and the master of a deployment without pipelines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_contract.state import EngineState, PipelinePhase, StateReport
from orca_operator import names
from orca_operator.actions import Apply, Delete, PutTopology, Scale
from orca_operator.conditions import Situation, find_condition
from orca_operator.manifests import boot
from orca_operator.observe import Observed
from orca_operator.plan import plan, unknown_to_master
from orca_operator.recovery import Recovery, Stop
from orca_operator.sleep import CLOSED, desired_pipelines, sleeps, wake_ups
from orca_operator.status import make_status
from support.orcadeployments import MINIMAL, context, everything, merged, report, view

DELAY = 30
ZERO = merged(MINIMAL, autoscaling={"minReplicas": 0, "maxReplicas": 4, "scaleDownDelaySeconds": DELAY})
DEMO = context(ZERO)


def reporting(pipelines: int = 1, **changes) -> StateReport:
    state = EngineState.SERVING if pipelines else EngineState.RECOVERING
    return report(DEMO, pipelines=pipelines).model_copy(update={"state": state, "idle_seconds": DELAY, **changes})


def paused(**changes) -> StateReport:
    """Return the report of a master that refuses requests."""
    said = reporting(0, state=EngineState.PAUSED, **changes)
    assert said.topology is not None
    return said.model_copy(update={"topology": said.topology.model_copy(update={"closed": CLOSED})})


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
        (reporting(idle_seconds=None), 1, 1),  # an older master, which rejects an empty topology
        (reporting(state=EngineState.LOADING), 1, 1),
        (reporting(state=EngineState.RECOVERING), 1, 1),
        (reporting(0), 0, 0),
        (reporting(0, idle_seconds=1.0), 0, 0),  # a request came and was refused at once
        (reporting(0, idle=False), 0, 0),  # a request is being refused
        (reporting(0, idle=False, has_backlog=True), 0, 1),
        (reporting(0, idle=False, has_backlog=True), 1, 1),
        (paused(), 0, 1),  # it was closed, and may never have served
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


def test_the_deployment_of_another_does_not_keep_the_revision_awake():
    """It has the label of the OrcaDeployment, but no revision."""
    found = observed(reporting())
    foreign = {"kind": "Deployment", "metadata": {"name": "debug", "labels": names.labels("demo")}, "spec": {}}
    found = replace(found, children=(*found.children, foreign))
    assert desired_pipelines(DEMO.spec, DEMO.revision, found) == 0


def test_a_new_revision_and_a_new_deployment_begin_with_a_pipeline():
    spec = DEMO.spec
    assert desired_pipelines(spec, DEMO.revision, Observed()) == 1
    assert desired_pipelines(spec, "newer1", observed(reporting(0), 0)) == 1
    without_master = [child for child in observed(None, 0).children if child["kind"] != "Pod"]
    assert desired_pipelines(spec, DEMO.revision, Observed(tuple(without_master))) == 1, "the master starts again"


requests = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 20)), max_size=12)
"""Requests: seconds since the one before began, and seconds that it takes."""


@pytest.mark.exhaustive
@settings(max_examples=settings.default.max_examples * 2 // 5)  # an example takes more than a second
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
                has_backlog=bool(waiting) and not serves,
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
    (put,), replicas = actions(reporting(0, idle=False, has_backlog=True), 1)
    assert len(put.body.pipelines) == 1
    assert replicas == {"StatefulSet": 1, "Deployment": 1}


def test_a_waiting_request_wakes_the_deployment_up():
    (put,), replicas = actions(reporting(0, idle=False, has_backlog=True), 0)
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
    assert (find_condition(found, "FullyApplied")["status"] == "True") == answers


def test_a_call_without_an_answer_does_not_end_the_sleep_in_the_status():
    asleep = make_status(Situation("demo", "default", 1, DEMO.spec, DEMO.revision, view(observed(reporting(0), 0))), {})
    silent = observed(None, 0)
    unreachable = replace(silent, unanswered={DEMO.revision: "timed out"})
    found = asleep
    for state, expected in (
        (silent, "ScaledToZero"), (unreachable, "MasterUnreachable"), (silent, "MasterUnreachable"),
        (observed(reporting(0), 0), "ScaledToZero"),
    ):  # fmt: skip
        found = make_status(Situation("demo", "default", 1, DEMO.spec, DEMO.revision, view(state)), found)
        assert find_condition(found, "Ready")["reason"] == expected


@pytest.mark.parametrize("said", [report(DEMO, PipelinePhase.CONNECTING), None])
def test_a_stopped_revision_does_not_sleep_whether_or_not_its_master_answers(said):
    recovery = Recovery(stop=Stop(DEMO.revision, 9, "crashes"), stopped=DEMO.revision, failure="it crashes")
    situation = Situation(
        "demo", "default", 1, DEMO.spec, DEMO.revision, view(observed(said, 0)), recovery=recovery
    )  # fmt: skip
    found = make_status(situation, {})
    assert found["replicas"] == 0
    assert find_condition(found, "Ready")["reason"] == "RestartBudgetExceeded"
    assert find_condition(found, "PipelinesFormed")["message"] == "0 of 1 pipelines serve"


# -- waking up --------------------------------------------------------------------------------------------------------

OLD = DEMO
EDITED = merged(ZERO, restart={"id": "2"})
STRATEGIES = [{}, {"type": "Recreate"}, {"maxSurge": 0, "maxUnavailable": 1}]


def woken(phase: str = "Connecting", **changes) -> StateReport:
    """Return the report of a master with a pipeline, which it has got for its backlog."""
    return report(OLD, phase).model_copy(update={"state": EngineState.RECOVERING, "has_backlog": True, **changes})


def summary(made) -> tuple[list[PutTopology], bool]:
    """Return the changed topologies, and whether a master is deleted."""
    return (
        [action for action in made if isinstance(action, PutTopology)],
        any(isinstance(action, Delete) and action.child["kind"] == "Deployment" for action in made),
    )


def test_only_requests_wake_a_master_and_only_one_without_pipelines():
    scale, put = wake_ups(observed(reporting(0, has_backlog=True), 0))
    assert isinstance(scale, Scale)
    assert isinstance(put, PutTopology)
    assert (scale.replicas, put.revision, put.body) == (1, OLD.revision, boot.topology(OLD, 1))
    assert wake_ups(observed(reporting(0, has_backlog=True), 0), stopped=OLD.revision) == [], "it restarts too often"
    assert wake_ups(observed(reporting(0), 0)) == []
    assert wake_ups(observed(woken(), 1)) == []
    assert wake_ups(observed(woken(), 0)) == [scale], "the API server has refused it before"
    assert wake_ups(observed(paused(), 0)) == []


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("said", [reporting(0, has_backlog=True), woken(), woken("Serving", state=EngineState.SERVING)])
def test_an_edit_keeps_the_old_revision_until_it_has_answered_the_requests_of_its_sleep(strategy, said):
    """Before it gets its pipeline, while that loads, and while it serves with a full queue."""
    new = context(merged(EDITED, rolloutStrategy=strategy))
    assert summary(plan(new, view(observed(said, len(said.pipelines))), serving_revision=OLD.revision)) == ([], False)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("held", "backlogs"), [(0, frozenset({OLD.revision})), (1, frozenset({OLD.revision}))])
def test_a_call_without_an_answer_ends_no_old_revision_whose_requests_wait(strategy, held, backlogs):
    seen = replace(observed(None, held), backlogs=backlogs)
    new = context(merged(EDITED, rolloutStrategy=strategy))
    assert summary(plan(new, view(seen), serving_revision=OLD.revision)) == ([], False)


def test_a_call_without_an_answer_ends_no_waiting_room():
    assert summary(plan(context(EDITED), view(observed(None, 0)), serving_revision=OLD.revision)) == ([], False)


@pytest.mark.parametrize(("strategy", "ends"), list(zip(STRATEGIES, [False, True, True], strict=True)))
def test_an_edit_without_requests_keeps_the_waiting_room_if_the_strategy_does(strategy, ends):
    new = context(merged(EDITED, rolloutStrategy=strategy))
    assert summary(plan(new, view(observed(reporting(0), 0)), serving_revision=OLD.revision)) == ([], ends)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_ordinary_rollout_does_not_wait_for_the_requests_of_a_broken_revision(strategy):
    """The edit may be its repair: only requests that came during a sleep keep an old revision."""
    new = context(merged(EDITED, rolloutStrategy=strategy))
    broken = woken(has_backlog=False, waiting=20, idle=False)
    _, ends = summary(plan(new, view(observed(broken, 1)), serving_revision=OLD.revision))
    assert ends == (strategy != {})


def both(said: StateReport, new_serves: bool = True) -> Observed:
    """Return the old revision, and the new one, which serves."""
    new = context(EDITED)
    found, before = everything(new), observed(said, 1)
    phase = "Serving" if new_serves else "Connecting"
    children = {(child["kind"], child["metadata"]["name"]): child for child in (*before.children, *found.children)}
    return Observed(tuple(children.values()), {OLD.revision: said, new.revision: report(new, phase)})


@pytest.mark.parametrize(
    ("said", "new_serves", "alone"),
    [(woken(), True, True), (woken("Serving"), True, True), (woken(), False, False), (reporting(0), False, False)],
    ids=["cannot wake up", "answers its backlog", "the new one does not serve", "the waiting room"],
)
def test_clients_reach_only_the_new_revision_as_soon_as_that_serves(said, new_serves, alone):
    """Otherwise every second request would wait at a revision that may never serve again."""
    new = context(EDITED)
    made = plan(new, view(both(said, new_serves)), serving_revision=OLD.revision)
    (service,) = (
        action.manifest["spec"]["selector"]
        for action in made
        if isinstance(action, Apply) and action.manifest["kind"] == "Service" and "type" in action.manifest["spec"]
    )
    assert service.get(names.REVISION_LABEL) == (new.revision if alone else None)
    assert summary(made)[1] is False


@pytest.mark.parametrize("said", [reporting(0), reporting(0, has_backlog=True)], ids=["asleep", "requests wait"])
def test_an_edit_back_to_a_revision_without_a_place_keeps_its_master(said):
    """Three revisions: the two others hold all places, and the master of the first has the waiting room."""
    others = [everything(context(merged(ZERO, restart={"id": number}))) for number in ("2", "3")]
    children = {(child["kind"], child["metadata"]["name"]): child for each in others for child in each.children}
    children |= {(child["kind"], child["metadata"]["name"]): child for child in observed(said, 0).children}
    reports = {OLD.revision: said} | {key: value for each in others for key, value in each.reports.items()}
    made = plan(OLD, view(Observed(tuple(children.values()), reports)), serving_revision=OLD.revision)
    (deployment,) = (
        action.manifest for action in made if isinstance(action, Apply) and action.manifest["kind"] == "Deployment"
    )
    assert deployment["spec"]["replicas"] == 1
    assert [put for put in summary(made)[0] if put.revision == OLD.revision] == []


# -- replicas 0 without an autoscaler ---------------------------------------------------------------------------------

STOPPED = context(merged(MINIMAL, replicas=0))


def stopped(said: StateReport | None, held: int) -> tuple[list[PutTopology], dict[str, int]]:
    """Return what `actions` returns for `replicas: 0`."""
    assert STOPPED.revision == DEMO.revision, "the same pods"
    made = plan(STOPPED, view(observed(said, held)))
    workloads = [action.manifest for action in made if isinstance(action, Apply)]
    return (
        summary(made)[0],
        {each["kind"]: each["spec"]["replicas"] for each in workloads if each["kind"] in ("StatefulSet", "Deployment")},
    )


def test_without_pipelines_the_master_stays_and_tells_clients_why():
    """First it refuses new requests, then the last pipeline leaves the topology, then its pods go."""
    (put,), replicas = stopped(reporting(running=1, idle=False), 1)
    assert (put.body.closed, len(put.body.pipelines), replicas) == (CLOSED, 1, {"StatefulSet": 1, "Deployment": 1})
    (put,), replicas = stopped(reporting(), 1)
    assert (put.body.closed, put.body.pipelines, replicas) == (CLOSED, [], {"StatefulSet": 1, "Deployment": 1})
    assert stopped(paused(), 1) == ([], {"StatefulSet": 0, "Deployment": 1})
    assert not sleeps(paused())


def test_a_master_that_starts_without_pipelines_gets_no_pods():
    """Its boot topology has a pipeline."""
    loading = reporting(state=EngineState.LOADING, idle_seconds=0.0)
    (put,), replicas = stopped(loading, 0)
    assert (put.body.closed, put.body.pipelines, replicas) == (CLOSED, [], {"StatefulSet": 0, "Deployment": 1})
    assert stopped(None, 0) == ([], {"StatefulSet": 0, "Deployment": 1})


def test_a_master_too_old_for_that_drains_and_ends():
    old_master = reporting(contract_version=4, idle_seconds=None)
    assert stopped(old_master, 1) == ([], {"StatefulSet": 0, "Deployment": 0})


def test_suspend_ends_the_master_too():
    made = plan(context(merged(ZERO, suspend=True)), view(observed(reporting(0, has_backlog=True), 0)))
    replicas = {
        action.manifest["kind"]: action.manifest["spec"]["replicas"]
        for action in made
        if isinstance(action, Apply) and action.manifest["kind"] in ("StatefulSet", "Deployment")
    }
    assert replicas == {"StatefulSet": 0, "Deployment": 0}
    assert summary(made)[0] == []
