"""The last rungs of the recovery of a pipeline: its pods are replaced (R2), and given up (R3). Pure.

The first ones need no operator: Kubernetes restarts a lost worker, the others keep their weights (R0), and a worker
that does not answer is ended by its liveness probe (R1).

R2: a pipeline that makes no progress for `recoveryTimeoutSeconds` loses all of its pods at once, and Kubernetes creates
them anew. Progress is a new pod, a pod that becomes ready, a start of the master, and the end of an earlier one's
drain. No pod is replaced while one of the pipeline waits for a node, ends, or pulls, downloads or loads for less than
`startupTimeoutSeconds`. A pod that may run only where the others run waits for a node no longer than that: its domain
may be full or drained, and new pods may choose another. This kind of replacement, and that of pods with other weights
than the others have, never exceed the budget of R3, because nothing has failed. The next replacement waits at least as
long as the pipeline has been down before the last one, so the waits double.

R3: a pipeline that has restarted more than `maxRestarts` times in the window (restart_budget.py) and does not serve is
not replaced any more. When no pipeline of the spec's revision serves and all of them are beyond their budgets, the
revision is stopped: its StatefulSets get 0 replicas until a new revision, a larger `maxRestarts` or `suspend`. While
another pipeline serves, all pods stay, because a StatefulSet can only lose its highest ones. Only a pass that counts a
restart and has a report of the master decides that, so the loss of a master stops nothing; and the pods go in a later
pass, when the decision is in the status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from orca_contract.reasons import Reason
from orca_contract.state import PipelinePhase, PipelineReport

from orca_operator import names
from orca_operator.actions import Replace
from orca_operator.api import Spec
from orca_operator.diagnose import CRASH_REASONS, View, diagnose_report, worst
from orca_operator.manifests.context import Context
from orca_operator.manifests.placement import POD_INDEX
from orca_operator.observe import (
    Object,
    Observed,
    container_statuses,
    is_ending,
    is_ready,
    label,
    name_of,
    ordinal,
    pod_condition,
)
from orca_operator.restart_budget import NO_RESTARTS, Budget, begin_window, count, read_budget

LONGEST_CAUSE = 300


@dataclass(frozen=True, slots=True)
class Stop:
    """A revision that gets no pods: how often a pipeline has restarted, and the cause of the last restart."""

    revision: str
    restarts: int
    cause: str

    def entry(self) -> dict[str, Any]:
        """Return the field `stopped` of the status."""
        return {"revision": self.revision, "restarts": self.restarts, "cause": self.cause}


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of all pipelines in one pass.

    `budgets`: by the pipeline's id. `stop`: for the status. `stopped`: the revision that gets no pods in this pass, ""
    without one. `failure`: a sentence about a pipeline of the spec's revision that is given up, "" without one.
    """

    budgets: Mapping[str, Budget] = field(default_factory=dict)
    replacements: Sequence[Replace] = ()
    stop: Stop | None = None
    stopped: str = ""
    failure: str = ""

    @property
    def given_up(self) -> str:
        """The stopped revision, also while its pods still run; "" without one."""
        return self.stop.revision if self.stop is not None else ""


NO_RECOVERY = Recovery()


def stored_recovery(previous: Mapping[str, Any]) -> Recovery:
    """Return what the previous status has, for a pass in which nothing is decided."""
    stopped = previous.get("stopped")
    return Recovery(
        {entry["id"]: read_budget(entry) for entry in previous.get("pipelines") or []},
        stop=Stop(stopped["revision"], stopped["restarts"], stopped.get("cause", "")) if stopped else None,
    )


def recover(context: Context, view: View, previous: Mapping[str, Any]) -> Recovery:
    """Return what becomes of the pipelines; `previous` is the status before this pass."""
    before, policy = stored_recovery(previous), context.spec.recovery_policy
    budgets, replacements, restarted = {}, [], set()
    for revision, index in _pipelines(view.observed, previous):
        pipeline, pods = names.pipeline_id(revision, index), view.observed.workers(revision, index)
        report = _report(view.observed, revision, pipeline)
        serves = report is not None and report.phase == PipelinePhase.SERVING
        begun = begin_window(before.budgets.get(pipeline, NO_RESTARTS), policy, serves, view.now)
        budget = count(begun, pods, view.now)
        since = None if report is None else _stuck_since(view, context.spec, revision, pods, report)
        is_sound = not all(map(_is_scheduled, pods)) or _has_other_weights(report)
        if since is not None and not (is_sound and budget.restarts >= policy.max_restarts):
            budget = budget.with_replacement(view.now)
            if budget.restarts <= policy.max_restarts:
                replacements.append(Replace(pipeline, tuple(pods), since))
        if budget.restarts > begun.restarts:
            restarted.add(revision)
        budgets[pipeline] = budget
    kept = _kept_stop(context, view.observed, before.stop)
    stop = (_new_stop(context, view, budgets) if context.revision in restarted else None) or kept
    stopped = kept.revision if kept is not None and _may_end(view.observed, kept.revision) else ""
    return Recovery(budgets, replacements, stop, stopped, _failure(context, view, budgets, stop))


def _pipelines(observed: Observed, previous: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return revision and index of all pipelines that have pods or an entry in the status."""
    entries = {(str(entry["revision"]), int(entry["index"])) for entry in previous.get("pipelines") or []}
    pods = {(label(pod, names.REVISION_LABEL), ordinal(pod)) for pod in observed.pods(names.WORKER)}
    return sorted(entries | pods)


def _report(observed: Observed, revision: str, pipeline: str) -> PipelineReport | None:
    """Return what a master says of a pipeline that it is to serve; None without an answer, and while it drains."""
    master = observed.reports.get(revision)
    if master is None or master.draining:
        return None
    return next((report for report in master.pipelines if report.id == pipeline), None)


def _has_other_weights(report: PipelineReport | None) -> bool:
    failure = report.last_failure if report is not None else None
    return failure is not None and failure.reason == Reason.DIFFERENT_WEIGHTS


# -- R2 ----------------------------------------------------------------------------------------------------------------


def _stuck_since(
    view: View, spec: Spec, revision: str, pods: Sequence[Object], report: PipelineReport
) -> datetime | None:
    """Return the time of the last progress of a pipeline whose pods are to be replaced, None for any other pipeline."""
    observed, now = view.observed, view.now
    partitions = [child for child in observed.of_kind("StatefulSet") if label(child, names.REVISION_LABEL) == revision]
    is_down = isinstance(report.phase, PipelinePhase) and report.phase is not PipelinePhase.SERVING
    startup_timeout = timedelta(seconds=spec.startup_timeout_seconds)
    if not is_down or not pods or len(pods) < len(partitions):
        return None
    if any(_may_come_up(pod, startup_timeout, now) for pod in pods) or not any(map(_is_scheduled, pods)):
        return None
    created = max(_time(pod["metadata"]["creationTimestamp"]) for pod in pods)
    progress = [created, *(moment for pod in pods for moment in _transition(pod, "Ready"))]
    masters = observed.pods(names.MASTER, revision)
    progress += [moment for pod in masters for moment in _starts(pod)]
    # A new master leaves the workers to one that drains, until that is killed at the latest.
    progress += [_time(pod["metadata"]["deletionTimestamp"]) for pod in masters if is_ending(pod)]
    patience, failure = timedelta(seconds=spec.recovery_policy.recovery_timeout_seconds), report.last_failure
    if failure is not None and failure.recovery_seconds is None:
        down_since = datetime.fromtimestamp(failure.at, UTC)  # of the first failure in a row
        progress.append(down_since)
        patience = max(patience, created - down_since)
    since = min(max(progress), now)
    return since if now - since >= patience else None


def _may_come_up(pod: Object, startup_timeout: timedelta, now: datetime) -> bool:
    """Whether a pod ends, waits for any node, or waits for that of other pods, pulls or loads within the timeout."""
    created = _time(pod["metadata"]["creationTimestamp"])
    if is_ending(pod):
        return True
    if not _is_scheduled(pod):
        return not _follows_others(pod) or now - created < startup_timeout
    states = [status.get("state", {}) for status in container_statuses(pod) if status["name"] == names.WORKER]
    has_crashed = any(
        "terminated" in state or state.get("waiting", {}).get("reason") in CRASH_REASONS for state in states
    )
    if is_ready(pod) or has_crashed:
        return False
    return now - max([created, *_transition(pod, "PodScheduled"), *_starts(pod)]) < startup_timeout


def _is_scheduled(pod: Object) -> bool:
    return bool(pod_condition(pod, "PodScheduled").get("status") == "True")


def _follows_others(pod: Object) -> bool:
    """Whether `placement: colocate` allows a pod only in the domain of the pipeline's others."""
    affinity = (pod["spec"].get("affinity") or {}).get("podAffinity") or {}
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []
    return any(POD_INDEX in (term.get("matchLabelKeys") or []) for term in terms)


def _transition(pod: Object, kind: str) -> list[datetime]:
    """Return when a condition became True; none while it is not, and for a pod without that time."""
    condition = pod_condition(pod, kind)
    moment = condition.get("lastTransitionTime") if condition.get("status") == "True" else None
    return [_time(moment)] if moment else []


def _starts(pod: Object) -> list[datetime]:
    """Return when the running container of a worker or master was started, without sidecars."""
    own = [status for status in container_statuses(pod) if status["name"] in (names.WORKER, names.MASTER)]
    running = [status.get("state", {}).get("running", {}) for status in own]
    return [_time(state["startedAt"]) for state in running if state.get("startedAt")]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


# -- R3 ----------------------------------------------------------------------------------------------------------------


def _new_stop(context: Context, view: View, budgets: Mapping[str, Budget]) -> Stop | None:
    """Return the stop of the spec's revision if no pipeline serves and all are beyond their budgets."""
    observed, revision = view.observed, context.revision
    pipelines = [names.pipeline_id(revision, index) for index in range(observed.held_pipelines(revision))]
    restarts = [budgets.get(pipeline, NO_RESTARTS).restarts for pipeline in pipelines]
    most = context.spec.recovery_policy.max_restarts
    if not pipelines or min(restarts) <= most or not _may_end(observed, revision):
        return None
    return Stop(revision, max(restarts), _cause(view, revision, pipelines))


def _kept_stop(context: Context, observed: Observed, stop: Stop | None) -> Stop | None:
    """Return an earlier stop, as long as its revision exists and neither `maxRestarts` nor `suspend` ends it."""
    if stop is None or stop.revision not in observed.revisions() or context.spec.suspend:
        return None
    if stop.restarts <= context.spec.recovery_policy.max_restarts:
        return None
    master = observed.reports.get(stop.revision)
    serves = master is not None and any(report.phase == PipelinePhase.SERVING for report in master.pipelines)
    return None if serves else stop


def _may_end(observed: Observed, revision: str) -> bool:
    """Whether a revision has no pods to lose, or its master reports that no pipeline serves."""
    master = observed.reports.get(revision)
    if master is None:
        return observed.held_pipelines(revision) == 0
    return all(report.phase != PipelinePhase.SERVING for report in master.pipelines)


def _failure(context: Context, view: View, budgets: Mapping[str, Budget], stop: Stop | None) -> str:
    most, revision = context.spec.recovery_policy.max_restarts, context.revision
    repair = "after the repair, change spec.restart.id"
    if stop is not None and stop.revision == revision:
        return (
            f"the pods are removed: a pipeline of revision {revision} has restarted {stop.restarts} times, more than "
            f"recoveryPolicy.maxRestarts ({most}); last cause: {stop.cause}; {repair}"
        )
    for index in range(max(context.spec.num_pipelines, view.observed.held_pipelines(revision))):
        pipeline, pods = names.pipeline_id(revision, index), view.observed.workers(revision, index)
        restarts = budgets.get(pipeline, NO_RESTARTS).restarts
        if restarts > most and not _may_serve(view.observed, revision, pipeline, pods):
            return (
                f"pipeline {pipeline} is given up: it has restarted {restarts} times, more than "
                f"recoveryPolicy.maxRestarts ({most}); Kubernetes still restarts its containers; "
                f"cause: {_cause(view, revision, [pipeline])}; {repair}"
            )
    return ""


def _may_serve(observed: Observed, revision: str, pipeline: str, pods: Sequence[Object]) -> bool:
    """Whether a pipeline serves, by the report of its master; without one, whether its pods are ready."""
    report = _report(observed, revision, pipeline)
    return all(map(is_ready, pods)) if report is None else report.phase == PipelinePhase.SERVING


def _cause(view: View, revision: str, pipelines: Sequence[str]) -> str:
    """Return the most severe cause that the worker pods of these pipelines or the master's report show."""
    pods = [
        pod
        for pod in view.observed.pods(names.WORKER, revision)
        if names.pipeline_id(revision, ordinal(pod)) in pipelines
    ]
    causes = [view.diagnoses[name_of(pod)] for pod in pods if name_of(pod) in view.diagnoses]
    if (master := view.observed.reports.get(revision)) is not None:
        own = [report for report in master.pipelines if report.id in pipelines]
        causes += diagnose_report(master.model_copy(update={"pipelines": own}))
    cause = worst(causes)
    return f"{cause.reason}: {cause.message}"[:LONGEST_CAUSE] if cause is not None else "unknown"
