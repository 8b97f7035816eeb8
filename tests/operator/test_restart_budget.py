"""Which restarts count, when a budget is exceeded, and which pods end; scenarios/restart-budget has the course."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.state import PipelinePhase
from orca_operator import names
from orca_operator.actions import Apply, PutTopology
from orca_operator.diagnose import look
from orca_operator.observe import Observed, label, name_of
from orca_operator.plan import plan
from orca_operator.restart_budget import Budget, exceeded, restart_budgets, stored_budgets, without_stopped
from support.orcadeployments import MINIMAL, NOW, context, everything, merged, pod, report

MOST, WINDOW = 2, 600
POLICY = {"maxRestarts": MOST, "restartWindowSeconds": WINDOW}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}


class Cluster:
    """A deployment of `replicas` pipelines with one worker each, whose pods restart; `held` as its StatefulSet has."""

    def __init__(self, replicas: int = 1) -> None:
        self.demo = context(merged(MINIMAL, replicas=replicas, recoveryPolicy=POLICY))
        self.status: dict[str, Any] = {}
        self.restarts = dict.fromkeys(range(replicas), 0)
        self.uids = dict.fromkeys(range(replicas), 0)
        self.serving = set(range(replicas))
        self.held = replicas
        self.now = NOW
        self.has_master = self.answers = True

    def observed(self) -> Observed:
        kept = everything(self.demo, len(self.restarts))
        children = [child for child in kept.children if child["kind"] != "Pod"]
        for child in children:
            if child["kind"] == "StatefulSet":
                child["spec"] = {**child["spec"], "replicas": self.held}
        for index in range(self.held):
            started = {"name": "w", "image": "i", "restartCount": self.restarts[index], "state": BACK_OFF}
            found = pod(self.demo, pipeline=index, ready=index in self.serving, containerStatuses=[started])
            found["metadata"]["uid"] = f"{index}-{self.uids[index]}"
            children.append(found)
        if self.has_master:
            children.append(pod(self.demo, names.MASTER, ready=True))
        said = report(self.demo, pipelines=len(self.restarts))
        phases = {index: "Serving" if index in self.serving else "Recovering" for index in self.restarts}
        entries = [
            entry.model_copy(update={"phase": PipelinePhase(phases[index])})
            for index, entry in enumerate(said.pipelines)
            if index < max(1, self.held)
        ]
        said = said.model_copy(update={"pipelines": entries})
        return Observed(tuple(children), {self.demo.revision: said} if self.has_master and self.answers else {})

    def budgets(self, seconds: float = 0) -> dict[int, Budget]:
        """Return the budgets of a pass after `seconds`, by index, and keep them as the status."""
        self.now += timedelta(seconds=seconds)
        view, revision = look(self.observed(), self.now), self.demo.revision
        found = restart_budgets(view, self.demo.spec.recovery_policy, revision, self.status)
        self.status = {
            "pipelines": [
                {"id": key, "index": index, "revision": revision, **found.get(key, Budget()).entry()}
                for index in self.restarts
                for key in [names.pipeline_id(revision, index)]
            ]
        }
        return {index: found.get(names.pipeline_id(revision, index), Budget()) for index in self.restarts}

    def keep(self, pipelines: int) -> None:
        """Let the StatefulSet have `pipelines` pods."""
        for index in range(self.held, pipelines):
            self.uids[index], self.restarts[index] = self.uids[index] + 1, 0
        self.held = pipelines
        self.serving = {index for index in self.serving if index < pipelines}

    def crash(self, index: int = 0) -> None:
        self.restarts[index] += 1
        self.serving.discard(index)


def spent(replicas: int = 1, index: int = 0) -> Cluster:
    """Return a cluster of which one pipeline has exceeded its budget."""
    cluster = Cluster(replicas)
    cluster.budgets()
    for _ in range(MOST + 1):
        cluster.crash(index)
        cluster.budgets(10)
    return cluster


def test_the_first_sight_of_pods_counts_nothing():
    """An operator is upgraded while pods have restarted before, or creates the first pods."""
    cluster = Cluster()
    cluster.restarts[0] = 7
    assert cluster.budgets()[0].restarts == 0
    assert cluster.budgets(5)[0].restarts == 0


def test_restarted_containers_and_replaced_pods_count_with_their_cause():
    cluster = Cluster()
    cluster.budgets()
    cluster.crash()
    found = cluster.budgets(5)[0]
    assert (found.restarts, found.since) == (1, "2026-01-01T12:00:05Z")
    assert found.cause.startswith("WorkerCrashLoop: ")
    cluster.uids[0], cluster.restarts[0] = 1, 0
    assert cluster.budgets(5)[0].restarts == 2
    assert cluster.budgets(5)[0].restarts == 2, "each once"


def test_a_pod_that_is_gone_for_a_while_counts_when_it_is_replaced():
    cluster = Cluster()
    cluster.budgets()
    observed = cluster.observed()
    gone = replace(observed, children=tuple(c for c in observed.children if c["kind"] != "Pod"))
    revision = cluster.demo.revision
    found = restart_budgets(look(gone, NOW), cluster.demo.spec.recovery_policy, revision, cluster.status)
    ((key, budget),) = found.items()
    cluster.status["pipelines"] = [{"id": key, "index": 0, "revision": revision, **budget.entry()}]
    cluster.uids[0] = 1
    assert cluster.budgets(5)[0].restarts == 1


def test_restarts_while_no_operator_ran_count_once_per_pod():
    """Their times are unknown: they may be spread over days."""
    cluster = Cluster()
    cluster.budgets()
    cluster.restarts[0] += 50
    assert cluster.budgets(86400)[0].restarts == 1


@pytest.mark.parametrize(("seconds", "restarts"), [(WINDOW - 1, 2), (WINDOW, 1)])
def test_the_window_begins_with_the_first_restart(seconds, restarts):
    cluster = Cluster()
    cluster.budgets()
    cluster.crash()
    cluster.budgets()
    cluster.crash()
    assert cluster.budgets(seconds)[0].restarts == restarts


@pytest.mark.parametrize("restarts", [MOST, MOST + 1])
def test_beyond_the_budget_a_pipeline_that_does_not_serve_is_stopped(restarts):
    cluster = Cluster()
    cluster.budgets()
    for _ in range(restarts):
        cluster.crash()
        found = cluster.budgets(10)[0]
    assert (found.exceeded, found.stopped) == (restarts > MOST,) * 2


def stateful_sets(actions) -> list[int]:
    applied = [action.manifest for action in actions if isinstance(action, Apply)]
    return [each["spec"]["replicas"] for each in applied if each["kind"] == "StatefulSet"]


def planned(cluster: Cluster) -> list:
    view, revision = look(cluster.observed(), cluster.now), cluster.demo.revision
    found = restart_budgets(view, cluster.demo.spec.recovery_policy, revision, cluster.status)
    return plan(cluster.demo, view, budgets=found)


def test_the_only_pipeline_loses_its_pods_and_the_master_stays():
    actions = planned(spent())
    assert stateful_sets(actions) == [0]
    assert not [action for action in actions if isinstance(action, PutTopology)]
    (deployment,) = (a.manifest for a in actions if isinstance(a, Apply) and a.manifest["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 1


def test_the_highest_pipeline_leaves_the_topology_before_its_pods_end():
    cluster = spent(2, index=1)
    actions = planned(cluster)
    (put,) = (action for action in actions if isinstance(action, PutTopology))
    assert [entry.id for entry in put.body.pipelines] == [f"{cluster.demo.revision}-0"]
    assert stateful_sets(actions) == [2]
    observed = cluster.observed()
    said = {cluster.demo.revision: report(cluster.demo, pipelines=1)}
    view = look(replace(observed, reports=said), cluster.now)
    found = restart_budgets(view, cluster.demo.spec.recovery_policy, cluster.demo.revision, cluster.status)
    assert stateful_sets(plan(cluster.demo, view, budgets=found)) == [1]


def test_a_pipeline_below_one_that_serves_keeps_its_pods():
    """A StatefulSet can only lose its highest pods."""
    cluster = spent(2, index=0)
    assert cluster.budgets()[0].stopped
    assert stateful_sets(planned(cluster)) == [2]


@pytest.mark.parametrize(
    ("has_master", "answers", "serves", "stopped"),
    [(True, True, False, True), (True, True, True, False), (True, False, False, False), (False, False, False, True)],
    ids=["down", "serves", "silent master", "no master"],
)
def test_a_pipeline_that_may_serve_is_not_stopped(has_master, answers, serves, stopped):
    cluster = spent()
    cluster.has_master, cluster.answers = has_master, answers
    cluster.serving = {0} if serves else set()
    found = cluster.budgets(5)[0]
    assert (found.exceeded, found.stopped) == (True, stopped)


def test_a_stopped_pipeline_stays_stopped_while_the_master_is_silent():
    cluster = spent()
    cluster.keep(0)
    cluster.answers = False
    assert cluster.budgets(5)[0].stopped


def test_a_stopped_pipeline_stays_stopped_until_the_budget_is_raised_and_begins_anew():
    cluster = spent()
    cluster.keep(0)
    assert cluster.budgets(100 * WINDOW)[0].stopped
    cluster.demo = context(merged(MINIMAL, recoveryPolicy=POLICY | {"maxRestarts": 9}))
    assert cluster.budgets(5)[0] == Budget()
    cluster.keep(1)
    assert cluster.budgets(5)[0].restarts == 0, "its new pods replace none"


@pytest.mark.parametrize("restarts_again", [False, True])
def test_a_pipeline_that_recovered_has_a_new_budget_after_a_window_without_restarts(restarts_again):
    cluster = spent()
    if restarts_again:
        cluster.crash()
        cluster.budgets(WINDOW - 1)
    cluster.serving = {0}
    assert cluster.budgets(WINDOW - 1)[0].exceeded
    assert cluster.budgets(20)[0].restarts == 0


@pytest.mark.parametrize("recovers", [False, True])
def test_a_pipeline_whose_pods_stay_has_no_new_budget_while_they_are_not_ready(recovers):
    """Kubernetes' back-off may be longer than a short window."""
    cluster = spent(2, index=0)
    cluster.serving |= {0} if recovers else set()
    assert cluster.budgets(2 * WINDOW)[0].exceeded == (not recovers)


def test_scaling_down_and_up_gives_a_new_budget():
    cluster = Cluster(2)
    cluster.budgets()
    cluster.crash(1)
    assert cluster.budgets(5)[1].restarts == 1
    cluster.keep(1)
    assert cluster.budgets(5)[1] == Budget()
    cluster.keep(2)
    assert cluster.budgets(5)[1].restarts == 0


def test_the_sentence_names_pipeline_count_cause_and_the_way_out():
    cluster = spent()
    revision, policy = cluster.demo.revision, cluster.demo.spec.recovery_policy
    found = stored_budgets(cluster.status)
    assert exceeded(found, policy, revision, 1) == "", "without a policy, no budget is exceeded"
    found = restart_budgets(look(cluster.observed(), cluster.now), policy, revision, cluster.status)
    sentence = exceeded(found, policy, revision, 1)
    for words in (
        f"pipeline {revision}-0: 3 restarts, the last at 2026-01-01T12:00:30Z, are more than",
        "recoveryPolicy.maxRestarts (2)",
        "its pods are removed", "last cause: WorkerCrashLoop: ", "raise maxRestarts or change restart.id",
    ):  # fmt: skip
        assert words in sentence
    assert exceeded(found, policy, revision, 0) == "", "not desired"


# -- whatever the order of events --------------------------------------------------------------------------------------

PIPELINES = 3
events = st.one_of(
    st.tuples(st.sampled_from(["crash", "replace", "serve"]), st.integers(0, PIPELINES - 1)),
    st.tuples(st.sampled_from(["silence", "answer", "lose the master"]), st.just(0)),
)


@given(st.lists(st.tuples(st.sampled_from([1, 100, WINDOW]), st.lists(events, max_size=2)), max_size=25))
def test_what_serves_or_stays_within_its_budget_keeps_its_pods_and_what_crashes_on_loses_them(passes):
    cluster = Cluster(PIPELINES)
    cluster.budgets()
    history: dict[int, list[datetime]] = {index: [] for index in range(PIPELINES)}

    def one_pass(seconds: float) -> None:
        budgets = cluster.budgets(seconds)
        for index, restarted in history.items():
            times = sorted(restarted)
            close = [b for a, b in zip(times, times[MOST:], strict=False) if b - a < timedelta(seconds=WINDOW)]
            assert close or not budgets[index].exceeded
        keyed = {names.pipeline_id(cluster.demo.revision, index): budget for index, budget in budgets.items()}
        kept = without_stopped(keyed, cluster.demo.revision, PIPELINES)
        for index in range(kept, cluster.held):
            assert budgets[index].exceeded
            assert index not in cluster.serving or not cluster.has_master
        cluster.keep(kept)

    for seconds, happening in passes:
        now = cluster.now + timedelta(seconds=seconds)
        for what, index in happening:
            match what:
                case "crash" | "replace" if index < cluster.held:
                    cluster.crash(index)
                    cluster.uids[index] += what == "replace"
                    history[index].append(now)
                case "serve" if index < cluster.held and cluster.has_master:
                    cluster.serving.add(index)
                case "silence" | "answer":
                    cluster.answers, cluster.has_master = what == "answer", True
                case "lose the master":
                    cluster.has_master = False
        one_pass(seconds)
    cluster.answers = cluster.has_master = True
    for _ in range(MOST + 1):
        for index in range(cluster.held):
            cluster.crash(index)
            history[index].append(cluster.now + timedelta(seconds=1))
        one_pass(1)
    assert cluster.held == 0


def test_the_pods_that_are_counted_are_the_workers_of_the_revision():
    cluster = Cluster()
    observed = cluster.observed()
    workers = [child for child in observed.pods() if label(child, names.ROLE_LABEL) == names.WORKER]
    other = pod(cluster.demo, revision="abcdef")
    view = look(replace(observed, children=(*observed.children, other)), NOW)
    found = restart_budgets(view, cluster.demo.spec.recovery_policy, cluster.demo.revision, {})
    assert list(found) == [f"{cluster.demo.revision}-{name_of(child).rpartition('-')[2]}" for child in workers]
