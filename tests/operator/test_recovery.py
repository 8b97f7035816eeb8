"""Which pipelines' pods are replaced (R2), which are given up (R3), and what the status says of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.reasons import Reason
from orca_contract.state import FailureReport, PipelinePhase, StateReport
from orca_operator import names
from orca_operator.actions import Apply, Check, Replace
from orca_operator.conditions import Situation, find_condition
from orca_operator.diagnose import Diagnosis, look
from orca_operator.manifests.context import Context
from orca_operator.manifests.placement import pipeline_affinity
from orca_operator.observe import Object, Observed, ordinal
from orca_operator.plan import plan
from orca_operator.recovery import Recovery, recover, stored_recovery
from orca_operator.status import make_status
from support.orcadeployments import MINIMAL, NOW, context, everything, merged, pod, report

PARTITIONS, PATIENCE, STARTUP, MOST = 2, 100, 1000, 3
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
PULLING = {"waiting": {"reason": "ImagePullBackOff", "message": "back-off"}}
SPEC = merged(
    MINIMAL,
    parallelism={"pipelineParallelSize": PARTITIONS},
    recoveryPolicy={"recoveryTimeoutSeconds": PATIENCE, "maxRestarts": MOST, "restartWindowSeconds": 36000},
    startupTimeoutSeconds=STARTUP,
)


@dataclass
class Worker:
    """A worker pod; times in seconds since the beginning. `ready`: since when, None while it is not."""

    uid: str
    created: float
    scheduled: bool = True
    scheduled_at: float = -1000.0
    ready: float | None = None
    restarts: int = 0
    state: dict[str, Any] = field(default_factory=lambda: {"running": {}})
    ending: bool = False
    affinity: dict[str, Any] = field(default_factory=dict)


class Deployment:
    """Pipelines of PARTITIONS workers, which serve at the beginning; `held` as the StatefulSets have."""

    def __init__(self, replicas: int = 1, spec: dict[str, Any] = SPEC) -> None:
        self.demo = context(merged(spec, replicas=replicas))
        self.held = replicas
        self.seconds = 0.0
        self.workers: dict[tuple[int, int], Worker] = {}
        self.number = 0
        for index in range(replicas):
            self.create(index, ready=0)
        self.down: dict[int, float | None] = {}
        """Since when a pipeline does not serve; None without a failure in the report."""
        self.reasons: dict[int, Reason] = {}
        self.master_started = -1000.0
        self.answers = True
        self.status: dict[str, Any] = {}

    def create(self, index: int, **state: Any) -> None:
        """Create the pods of a pipeline that do not exist."""
        for partition in range(PARTITIONS):
            self.number += 1
            if (partition, index) not in self.workers:
                self.workers[partition, index] = Worker(str(self.number), self.seconds, **state)

    def worker(self, index: int = 0, partition: int = 1) -> Worker:
        return self.workers[partition, index]

    def lose(self, index: int = 0) -> None:
        """Let a pipeline fail while its workers run."""
        self.down[index] = self.seconds

    def crash(self, index: int = 0, partition: int = 1) -> None:
        worker = self.worker(index, partition)
        worker.restarts, worker.state, worker.ready = worker.restarts + 1, BACK_OFF, None
        self.down.setdefault(index, self.seconds)

    def at(self, seconds: float) -> datetime:
        return NOW + timedelta(seconds=seconds)

    def observed(self) -> Observed:
        children = _objects(self.demo)
        for child in children:
            if child["kind"] == "StatefulSet":
                child["spec"] = {**child["spec"], "replicas": self.held}
        for (partition, index), worker in self.workers.items():
            conditions = [
                {"type": "PodScheduled", "status": str(worker.scheduled),
                 "lastTransitionTime": self.at(worker.scheduled_at).isoformat()},
                {"type": "Ready", "status": str(worker.ready is not None),
                 "lastTransitionTime": self.at(worker.ready or 0).isoformat()},
            ]  # fmt: skip
            container = {"name": "worker", "image": "i", "restartCount": worker.restarts, "state": worker.state}
            found = pod(
                self.demo, partition=partition, pipeline=index, conditions=conditions, containerStatuses=[container]
            )
            found["metadata"] |= {"uid": worker.uid, "creationTimestamp": self.at(worker.created).isoformat()}
            found["spec"] = {**found["spec"], "affinity": worker.affinity}
            if worker.ending:
                found["metadata"]["deletionTimestamp"] = NOW.isoformat()
            children.append(found)
        started = {"running": {"startedAt": self.at(self.master_started).isoformat()}}
        master = {"name": "master", "image": "i", "restartCount": 0, "state": started}
        now = {"running": {"startedAt": self.at(self.seconds).isoformat()}}
        sidecar = {"name": "sidecar", "image": "i", "restartCount": 99, "state": now}  # no progress of the pipeline
        children.append(pod(self.demo, names.MASTER, ready=True, containerStatuses=[master, sidecar]))
        return Observed(tuple(children), {self.demo.revision: self.report()} if self.answers else {})

    def report(self) -> StateReport:
        said = report(self.demo, pipelines=self.demo.spec.replicas)
        entries = []
        for index, entry in enumerate(said.pipelines):
            changes: dict[str, Any] = {}
            if index in self.down or index >= self.held:
                at = self.down.get(index)
                failure = None if at is None else FailureReport(
                    at=self.at(at).timestamp(), reason=self.reasons.get(index, Reason.COMMUNICATOR_ERROR), worker="",
                    message="lost", recovery_seconds=None,
                )  # fmt: skip
                changes = {"phase": PipelinePhase.RECOVERING, "last_failure": failure}
            entries.append(entry.model_copy(update=changes))
        return said.model_copy(update={"pipelines": entries})

    def run_pass(self, seconds: float = 0, stores: bool = True) -> Recovery:
        """Run a pass after `seconds` and store its status."""
        self.seconds += seconds
        view = look(self.observed(), self.at(self.seconds))
        found = recover(self.demo, view, self.status)
        if stores:
            self.status = make_status(self.situation(found), self.status)
        return found

    def situation(self, found: Recovery) -> Situation:
        demo, view = self.demo, look(self.observed(), self.at(self.seconds))
        return Situation(demo.name, demo.namespace, 1, demo.spec, demo.revision, view, recovery=found)

    def planned(self, found: Recovery) -> list[Any]:
        return plan(self.demo, look(self.observed(), self.at(self.seconds)), recovery=found)

    def follow(self, found: Recovery) -> None:
        """Let Kubernetes do what the plan of a pass says."""
        (self.held,) = {
            action.manifest["spec"]["replicas"]
            for action in self.planned(found)
            if isinstance(action, Apply) and action.manifest["kind"] == "StatefulSet"
        }
        gone = {child["metadata"]["uid"] for action in found.replacements for child in action.pods}
        self.workers = {
            place: worker
            for place, worker in self.workers.items()
            if worker.uid not in gone and place[1] < self.held
        }  # fmt: skip
        for index in range(self.held):
            self.create(index)

    def condition(self, kind: str) -> tuple[str, str, str]:
        condition = find_condition(self.status, kind)
        return condition["status"], condition["reason"], condition["message"]


@cache
def _everything(spec: str) -> tuple[Object, ...]:
    return everything(context(json.loads(spec))).children


def _objects(demo: Context) -> list[dict[str, Any]]:
    """Return all children but the pods."""
    children = _everything(demo.spec.model_dump_json(by_alias=True, exclude_unset=True))
    return [dict(child) for child in children if child["kind"] != "Pod"]


def replaced(found: Recovery) -> list[str]:
    return [action.pipeline for action in found.replacements]


# -- R2 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "is_replaced"), [(PATIENCE - 1, False), (PATIENCE, True)])
def test_all_pods_of_a_pipeline_without_progress_are_replaced_at_once(seconds, is_replaced):
    deployment = Deployment(2)
    deployment.run_pass(50)
    deployment.lose(1)
    found = deployment.run_pass(seconds)
    assert replaced(found) == [names.pipeline_id(deployment.demo.revision, 1)] * is_replaced
    if is_replaced:
        (action,) = found.replacements
        assert [ordinal(child) for child in action.pods] == [1] * PARTITIONS
        assert action.since == deployment.at(50)


def _change(**changes: Any) -> Any:
    return lambda deployment: [setattr(deployment.worker(), name, value) for name, value in changes.items()]


LATE = PATIENCE * 5
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
FOREIGN = {"podAffinity": {REQUIRED: [{"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "zone"}]}}


def _affinity(**placement: Any) -> dict[str, Any]:
    """Return the affinity of worker pods with a placement."""
    settings = {"placement": {"policy": "colocate", **placement}, "affinity": FOREIGN}
    return dict(pipeline_affinity(context(merged(SPEC, worker=settings))))


TOGETHER, PREFERRED = _affinity(), _affinity(whenUnsatisfiable="ScheduleAnyway")


def _successor(created: float, **changes: Any) -> Any:
    """Let a pod wait for a node since `created`."""
    return _change(ready=None, scheduled=False, created=created, **changes)


def _all_wait(deployment: Deployment) -> None:
    for worker in deployment.workers.values():
        worker.ready, worker.scheduled, worker.created, worker.affinity = None, False, LATE - STARTUP, TOGETHER


@pytest.mark.parametrize(
    ("change", "is_replaced"),
    [
        (lambda deployment: None, True),
        (lambda deployment: deployment.down.clear(), False),
        (lambda deployment: setattr(deployment, "answers", False), False),
        (lambda deployment: deployment.workers.pop((1, 0)), False),
        (_change(ending=True, ready=None, state=BACK_OFF), False),
        (_change(ready=None, scheduled=False), False),
        (_successor(LATE - STARTUP, affinity=TOGETHER), True),
        (_successor(LATE - STARTUP + 1, affinity=TOGETHER), False),
        (_successor(LATE - STARTUP, affinity=PREFERRED), False),
        (_successor(LATE - STARTUP, affinity=FOREIGN), False),
        (_all_wait, False),
        (_change(ready=None), False),
        (_change(ready=None, state=PULLING), False),
        (_change(ready=None, created=LATE - STARTUP), True),
        (_change(ready=None, created=LATE - STARTUP, scheduled_at=LATE - STARTUP + 1), False),
        (_change(ready=None, state={"running": {"startedAt": "2026-01-01T12:05:00Z"}}, created=-9999), False),
        (_change(ready=None, state=BACK_OFF), True),
        (_change(ready=LATE - PATIENCE + 1), False),
        (_change(created=LATE - PATIENCE + 1), False),
        (lambda deployment: setattr(deployment, "master_started", LATE - PATIENCE + 1), False),
    ],
    ids=[
        "no progress", "serves", "silent master", "a pod is missing", "a pod ends", "a pod waits for a node",
        "a pod waits for the others' node for too long", "a pod waits for the others' node", "a pod may run elsewhere",
        "a pod waits for the node of pods of others",
        "all pods wait", "a pod loads", "a pod pulls its image", "a pod loads for too long", "a pod waited for a node",
        "a restarted pod loads", "a pod crashes", "a pod became ready", "a pod is new", "the master is new",
    ],
)  # fmt: skip
def test_a_pipeline_is_not_replaced_while_it_makes_progress_or_may_still_do_so(change, is_replaced):
    deployment = Deployment()
    deployment.lose()
    deployment.seconds = LATE
    change(deployment)
    assert bool(replaced(deployment.run_pass())) == is_replaced


def test_a_pod_that_waits_for_the_others_node_stops_nothing():
    """Its pipeline has not restarted, and the node may come."""
    deployment = Deployment(spec=merged(SPEC, recoveryPolicy=SPEC["recoveryPolicy"] | {"maxRestarts": 0}))
    deployment.lose()
    deployment.seconds = LATE
    _successor(LATE - STARTUP, affinity=TOGETHER)(deployment)
    for _ in range(3):
        found = deployment.run_pass(5)
        assert (replaced(found), found.stop) == ([], None)


def test_a_pipeline_that_never_failed_waits_from_the_readiness_of_its_pods_on():
    deployment = Deployment()
    deployment.down[0] = None
    assert not replaced(deployment.run_pass(PATIENCE - 1))
    assert replaced(deployment.run_pass(1))


@pytest.mark.long
def test_the_waits_between_replacements_double():
    """The pods load for 30 s each time."""
    policy = SPEC["recoveryPolicy"] | {"maxRestarts": 1000}
    deployment, times = Deployment(spec=merged(SPEC, recoveryPolicy=policy)), []
    deployment.lose()
    for _ in range(300):
        found = deployment.run_pass(10)
        if replaced(found):
            times.append(deployment.seconds)
        deployment.follow(found)
        for worker in deployment.workers.values():
            if worker.ready is None and deployment.seconds - worker.created >= 30:
                worker.ready = deployment.seconds
    assert times == [100, 230, 490, 1010, 2050]


def test_a_replacement_that_the_watch_has_not_told_of_yet_is_counted_once():
    deployment = Deployment()
    deployment.run_pass()
    deployment.lose()
    for _ in range(20):
        found = deployment.run_pass(PATIENCE)
        assert (len(found.replacements), deployment.status["pipelines"][0]["restarts"]) == (1, 1)
    deployment.follow(found)
    assert not replaced(deployment.run_pass(5))


def test_a_master_that_drains_keeps_its_pods():
    deployment = Deployment()
    deployment.lose()
    deployment.seconds = LATE
    observed = deployment.observed()
    said = {deployment.demo.revision: deployment.report().model_copy(update={"draining": True})}
    view = look(replace(observed, reports=said), deployment.at(LATE))
    assert not replaced(recover(deployment.demo, view, {}))


@pytest.mark.parametrize(
    ("killed_at", "is_replaced"), [(LATE - PATIENCE, True), (LATE - PATIENCE + 1, False), (LATE + 9, False)]
)
def test_workers_that_an_earlier_master_drains_are_kept(killed_at, is_replaced):
    """The new master reports them as not connected. A deletionTimestamp is the time at which the grace period ends."""
    deployment = Deployment()
    deployment.lose()
    deployment.seconds = LATE
    observed = deployment.observed()
    earlier = pod(deployment.demo, names.MASTER, ready=True)
    earlier["metadata"] |= {"name": "earlier", "deletionTimestamp": deployment.at(killed_at).isoformat()}
    view = look(replace(observed, children=(*observed.children, earlier)), deployment.at(LATE))
    assert bool(replaced(recover(deployment.demo, view, {}))) == is_replaced


def test_a_replacement_does_not_wait_for_the_api_servers_opinion_of_an_edit():
    deployment = Deployment()
    deployment.lose()
    found = deployment.run_pass(PATIENCE)
    edited = context(merged(SPEC, worker={"image": "new:1"}))
    actions = plan(edited, look(deployment.observed(), deployment.at(PATIENCE)), recovery=found)
    assert [type(action) for action in actions[:2]] == [Replace, Check]


# -- R3 ----------------------------------------------------------------------------------------------------------------


def beyond(replicas: int = 1, index: int = 0) -> Deployment:
    """Return a deployment of which one pipeline has just exceeded its budget."""
    deployment = Deployment(replicas)
    deployment.run_pass()
    for _ in range(MOST + 1):
        deployment.crash(index)
        deployment.run_pass(5)
    return deployment


def test_the_budget_itself_is_not_too_much():
    deployment = Deployment()
    deployment.run_pass()
    for _ in range(MOST):
        deployment.crash()
        assert not deployment.run_pass(5).failure
    assert deployment.condition("Failed")[0] == "False"


def test_a_revision_of_which_all_pipelines_are_beyond_their_budgets_is_stopped_once_the_status_says_so():
    deployment = Deployment()
    deployment.run_pass()
    for _ in range(MOST):
        deployment.crash()
        deployment.run_pass(5)
    deployment.crash()
    lost = deployment.run_pass(5, stores=False)
    deployment.follow(lost)
    assert (lost.stop is not None, lost.stopped, deployment.held) == (True, "", 1), "the status was not written"
    deployment.follow(deployment.run_pass(5))
    assert deployment.held == 1
    deployment.follow(deployment.run_pass(5))
    assert (deployment.held, deployment.workers) == (0, {})
    deployment.run_pass(5)
    failed = deployment.condition("Failed")
    assert failed[:2] == ("True", "RestartBudgetExceeded")
    assert deployment.condition("Ready") == ("False", *failed[1:])
    assert deployment.condition("Progressing")[0] == "False"
    for words in (
        "the pods are removed", f"a pipeline of revision {deployment.demo.revision} has restarted 4 times",
        "recoveryPolicy.maxRestarts (3)", "last cause: WorkerCrashLoop: ", "change spec.restart.id",
    ):  # fmt: skip
        assert words in failed[2]


def stopped() -> Deployment:
    deployment = beyond()
    deployment.follow(deployment.run_pass(5))
    assert deployment.held == 0
    return deployment


@pytest.mark.parametrize(
    ("spec", "held"),
    [
        (merged(SPEC, replicas=3), 0),
        (merged(SPEC, startupTimeoutSeconds=99), 0),
        (merged(SPEC, recoveryPolicy={"maxRestarts": MOST}), 0),
        (merged(SPEC, recoveryPolicy={"maxRestarts": MOST + 1}), 1),
        (merged(SPEC, restart={"id": "2"}), 1),
    ],
    ids=["more replicas", "another edit", "the same budget", "a larger budget", "restart.id"],
)
def test_a_stopped_revision_stays_stopped_until_an_edit_that_starts_it_anew(spec, held):
    """An autoscaler edits `replicas`."""
    deployment = stopped()
    deployment.run_pass(100 * 36000)
    deployment.demo = context(spec)
    deployment.follow(deployment.run_pass(5))
    deployment.follow(deployment.run_pass(5))
    assert deployment.held == held


def test_suspend_starts_a_stopped_revision_anew():
    deployment = stopped()
    for suspend, held in ((True, 0), (False, 1)):
        deployment.demo = context(merged(SPEC, suspend=suspend))
        deployment.follow(deployment.run_pass(5))
        assert deployment.held == held
    assert "stopped" not in deployment.status
    assert deployment.status["pipelines"][0].get("restarts") is None


def test_a_stopped_revision_stays_stopped_while_the_master_is_silent_and_for_a_rejected_edit():
    deployment = stopped()
    deployment.answers = False
    assert deployment.run_pass(5).stopped
    status, deployment.status = deployment.status, {**deployment.status, "pipelines": []}
    assert stored_recovery(status).stop == deployment.run_pass(5).stop


def test_a_pass_without_a_valid_spec_keeps_what_is_counted():
    deployment = beyond(2)
    before = stored_recovery(deployment.status)
    problem = Diagnosis(Reason.INVALID_SPEC, "spec.model: unknown")
    situation = replace(deployment.situation(before), spec=None, revision=None, problem=problem)
    entries = {entry["id"]: entry for entry in make_status(situation, deployment.status)["pipelines"]}
    assert entries[names.pipeline_id(deployment.demo.revision, 0)]["restarts"] == MOST + 1


def test_while_another_pipeline_serves_the_pods_stay_and_are_not_replaced_any_more():
    deployment = beyond(2, index=1)
    for _ in range(3):
        found = deployment.run_pass(LATE)
        deployment.follow(found)
        assert (replaced(found), found.stop, deployment.held) == ([], None, 2)
    status, reason, message = deployment.condition("Failed")
    assert (status, reason) == ("True", "RestartBudgetExceeded")
    assert f"pipeline {deployment.demo.revision}-1 is given up" in message
    assert "Kubernetes still restarts its containers" in message
    assert deployment.condition("Available")[0] == "True"


def test_a_pipeline_beyond_its_budget_that_serves_is_not_accused_and_survives_the_loss_of_the_master():
    deployment = beyond(2, index=1)
    deployment.down.clear()
    deployment.worker(1).ready = deployment.seconds
    assert deployment.run_pass(5).failure == ""
    assert deployment.condition("Failed")[0] == "False"
    deployment.answers = False
    assert deployment.run_pass(5).failure == ""
    deployment.answers, deployment.master_started = True, deployment.seconds
    deployment.down = {0: None, 1: None}
    found = deployment.run_pass(5)
    assert (found.stop, replaced(found)) == (None, [])


def test_the_only_pipeline_beyond_its_budget_survives_the_loss_of_the_master():
    deployment = beyond()
    deployment.down.clear()
    deployment.worker().ready = deployment.seconds
    deployment.run_pass(5)
    assert "stopped" not in deployment.status
    deployment.down[0] = None
    for _ in range(5):
        deployment.follow(deployment.run_pass(5))
    assert deployment.held == 1


def test_pods_of_a_revision_that_is_to_be_stopped_stay_while_the_master_is_silent():
    deployment = beyond()
    for answers, held in ((False, 1), (False, 1), (True, 0)):
        deployment.answers = answers
        deployment.follow(deployment.run_pass(5))
        assert deployment.held == held


def test_a_revision_of_which_all_pipelines_are_beyond_their_budgets_is_not_stopped_while_one_serves():
    deployment = beyond(2)
    deployment.down.clear()
    for _ in range(MOST + 2):
        deployment.crash(1)
        assert deployment.run_pass(5).stop is None


def test_nothing_is_stopped_in_a_pass_without_a_report():
    deployment = Deployment()
    deployment.run_pass()
    deployment.answers = False
    for _ in range(MOST + 5):
        deployment.crash()
        assert deployment.run_pass(5).stop is None
    deployment.answers = True
    assert deployment.run_pass(5).stop is None
    deployment.crash()
    assert deployment.run_pass(5).stop is not None


@pytest.mark.long
def test_a_pipeline_that_hangs_after_every_replacement_is_given_up():
    deployment, replacements = Deployment(), 0
    deployment.lose()
    for _ in range(400):
        found = deployment.run_pass(10)
        replacements += len(found.replacements)
        deployment.follow(found)
        for worker in deployment.workers.values():
            worker.ready = worker.created if worker.ready is None else worker.ready
    assert (replacements, deployment.held) == (MOST, 0)
    assert "CommunicatorError" in deployment.condition("Failed")[2]


def test_a_pipeline_with_other_weights_is_not_given_up():
    """It waits, sound, for the end of the one that serves, and takes its place after a failure."""
    policy = SPEC["recoveryPolicy"] | {"maxRestarts": 0}
    deployment = Deployment(2, merged(SPEC, recoveryPolicy=policy))
    deployment.run_pass()
    deployment.lose(1)
    deployment.reasons[1] = Reason.DIFFERENT_WEIGHTS
    for _ in range(3):
        found = deployment.run_pass(LATE)
        assert (replaced(found), found.failure) == ([], "")
    deployment.crash(0)
    assert deployment.run_pass(5).stop is None


def test_pods_with_other_weights_are_replaced_within_the_budget():
    deployment, replacements = Deployment(2), 0
    deployment.lose(1)
    deployment.reasons[1] = Reason.DIFFERENT_WEIGHTS
    for _ in range(20):
        found = deployment.run_pass(LATE)
        replacements += len(found.replacements)
        deployment.follow(found)
        for worker in deployment.workers.values():
            worker.ready = worker.created if worker.ready is None else worker.ready
        assert found.failure == ""
    assert replacements == MOST


def test_a_stop_ends_with_its_revision():
    deployment = stopped()
    old = deployment.demo.revision
    deployment.demo = context(merged(SPEC, restart={"id": "2"}))
    assert deployment.demo.revision != old
    assert deployment.run_pass(5).stop is None, "the old revision has no workloads any more"


# -- whatever the order of events --------------------------------------------------------------------------------------

PIPELINES = 3
events = st.one_of(
    st.tuples(st.sampled_from(["crash", "evict", "lose", "serve"]), st.integers(0, PIPELINES - 1)),
    st.tuples(st.sampled_from(["silence", "answer", "restart the master", "restart the operator"]), st.just(0)),
)


@given(st.lists(st.tuples(st.sampled_from([1, 30, PATIENCE, LATE]), st.lists(events, max_size=2)), max_size=25))
def test_what_serves_keeps_its_pods_and_only_pipelines_beyond_their_budgets_are_given_up(passes):
    deployment = Deployment(PIPELINES)
    deployment.run_pass()
    failures = dict.fromkeys(range(PIPELINES), 0)

    def one_pass(seconds: float) -> None:
        serving = {index for index in range(deployment.held) if index not in deployment.down}
        before = dict(deployment.workers)
        found = deployment.run_pass(seconds)
        deployment.follow(found)
        for action in found.replacements:
            assert len(action.pods) == PARTITIONS
            failures[ordinal(action.pods[0])] += 1
        lost = {index for _, index in before if any(before[p, index] is not deployment.workers.get((p, index))
                                                    for p in range(PARTITIONS))}  # fmt: skip
        assert not lost & serving
        if not deployment.answers and deployment.held:
            assert not lost
        if deployment.held < PIPELINES:
            assert deployment.held == 0
            assert min(failures.values()) >= MOST
        for worker in deployment.workers.values():
            worker.ready = deployment.seconds if worker.ready is None and worker.state != BACK_OFF else worker.ready

    for seconds, happening in passes:
        for what, index in happening:
            match what:
                case "crash" if index < deployment.held:
                    deployment.crash(index)
                    failures[index] += 1
                case "evict" if index < deployment.held:
                    del deployment.workers[0, index]
                    deployment.create(index)
                    deployment.lose(index)
                case "lose" if index < deployment.held:
                    deployment.lose(index)
                case "serve" if index < deployment.held:
                    deployment.down.pop(index, None)
                    deployment.worker(index).state = {"running": {}}
                case "restart the master":
                    deployment.master_started = deployment.seconds
                case "silence" | "answer":
                    deployment.answers = what == "answer"
        one_pass(seconds)
    deployment.answers = True
    for _ in range(MOST + 2):
        for index in range(deployment.held):
            deployment.crash(index)
            failures[index] += 1
        one_pass(1)
    assert deployment.held == 0
