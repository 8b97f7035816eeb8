"""The restart budget of each pipeline (`recoveryPolicy.maxRestarts` in `restartWindowSeconds`), and its end. Pure.

A restart is a container of a worker pod that was started again, or a pod that replaces another one of the same name.
The counts, and the starts that are counted already, are in the status: pods alone do not tell how often they were
replaced, and a restarted operator must not grant a new budget. A pod counts at most once per pass, so restarts while no
operator runs, whose times nobody knows, count once per pod.

A pipeline that has exceeded its budget and does not serve is stopped: its pods are removed, and only an edit starts
them again. A StatefulSet can only lose its highest pods, so a pipeline below one that is not stopped stays, and
Kubernetes goes on restarting its containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from orca_contract.state import PipelinePhase

from orca_operator import names
from orca_operator.api import RecoveryPolicy
from orca_operator.diagnose import Diagnosis, View, worst
from orca_operator.observe import Object, is_ready, label, name_of, ordinal, restarts
from orca_operator.outdated import held_pipelines

LONGEST_CAUSE = 200


@dataclass(frozen=True, slots=True)
class Budget:
    """The restarts of one pipeline in its window, the cause of the last one, and whether they are too many.

    `since`: the begin of the window, at its first restart; beyond the budget, at the last restart.
    `starts`: the last counted start of a pod, by partition. `stopped`: the pipeline is not to have pods.
    """

    restarts: int = 0
    since: str = ""
    cause: str = ""
    starts: Mapping[str, str] = field(default_factory=dict)
    exceeded: bool = False
    stopped: bool = False

    def entry(self) -> dict[str, Any]:
        """Return the fields of the pipeline's entry in the status."""
        values = {"restartsSince": self.since, "restartCause": self.cause, "podStarts": dict(self.starts)}
        return {"restarts": self.restarts} | {name: value for name, value in values.items() if value}


def restart_budgets(
    view: View, policy: RecoveryPolicy, revision: str, previous: Mapping[str, Any]
) -> dict[str, Budget]:
    """Return the budgets of the pipelines of a revision, by id; `previous` is the status before this pass."""
    stored = {entry["id"]: entry for entry in previous.get("pipelines") or [] if entry["revision"] == revision}
    indices = {entry["index"] for entry in stored.values()}
    indices |= {ordinal(pod) for pod in view.observed.pods(names.WORKER, revision)}
    places = {names.pipeline_id(revision, index): index for index in sorted(indices)}
    return {
        pipeline: _budget(view, policy, revision, index, stored.get(pipeline, {})) for pipeline, index in places.items()
    }


def stored_budgets(previous: Mapping[str, Any]) -> dict[str, Budget]:
    """Return the counts of the previous status: without a valid spec there is no policy, and no pod is removed."""
    return {entry["id"]: _read(entry) for entry in previous.get("pipelines") or []}


def without_stopped(budgets: Mapping[str, Budget], revision: str, pipelines: int) -> int:
    """Return how many of the first `pipelines` pipelines are to have pods: without the highest that are stopped."""
    while pipelines and budgets.get(names.pipeline_id(revision, pipelines - 1), Budget()).stopped:
        pipelines -= 1
    return pipelines


def exceeded(budgets: Mapping[str, Budget], policy: RecoveryPolicy, revision: str, desired: int) -> str:
    """Return a sentence about the first desired pipeline that has exceeded its budget, "" without one."""
    for index in range(desired):
        pipeline = names.pipeline_id(revision, index)
        budget = budgets.get(pipeline, Budget())
        if budget.exceeded:
            is_kept = index < without_stopped(budgets, revision, desired)
            state = "its pods stay, because it or a higher pipeline may serve" if is_kept else "its pods are removed"
            return (
                f"pipeline {pipeline}: {budget.restarts} restarts, the last at {budget.since}, are more than "
                f"recoveryPolicy.maxRestarts ({policy.max_restarts}): {state}; "
                f"last cause: {budget.cause or 'unknown'}; after the repair, raise maxRestarts or change restart.id"
            )
    return ""


def _budget(view: View, policy: RecoveryPolicy, revision: str, index: int, entry: Mapping[str, Any]) -> Budget:
    before, pods = _read(entry), view.observed.workers(revision, index)
    is_held = index < held_pipelines(view.observed, revision)
    most, window = policy.max_restarts, timedelta(seconds=policy.restart_window_seconds)
    count, since, cause = before.restarts, before.since, before.cause
    is_over = bool(since) and view.now - datetime.fromisoformat(since) >= window
    if count > most and is_held:  # its end is final, but a pipeline that serves for a whole window has recovered
        is_over = is_over and bool(pods) and all(map(is_ready, pods))
    elif count > most:
        is_over = False
    if is_over or (count <= most and not is_held):
        count, since, cause = 0, "", ""
    starts = {label(pod, names.PARTITION_LABEL): _start(pod) for pod in pods} if is_held else {}
    new = sum(before.starts.get(partition, start) != start for partition, start in starts.items())
    if new:
        # Beyond the budget the window begins anew with each restart: then only a window without any resets the count.
        since = since if count and count + new <= most else _rfc3339(view.now)
        count, cause = count + new, _cause(view, pods) or cause
    is_exceeded = count > most
    stopped = is_exceeded and (not is_held or not _may_serve(view, revision, index))
    return Budget(count, since, cause, (dict(before.starts) if is_held else {}) | starts, is_exceeded, stopped)


def _read(entry: Mapping[str, Any]) -> Budget:
    since, cause = entry.get("restartsSince", ""), entry.get("restartCause", "")
    return Budget(entry.get("restarts", 0), since, cause, entry.get("podStarts", {}))


def _start(pod: Object) -> str:
    """Return a text that differs for each start of a container of a pod, and of its successor."""
    return f"{restarts(pod)} of {pod['metadata']['uid']}"


def _cause(view: View, pods: list[Object]) -> str:
    causes = [view.diagnoses[name_of(pod)] for pod in pods if name_of(pod) in view.diagnoses]
    found: Diagnosis | None = worst(causes)
    return "" if found is None else f"{found.reason.value}: {found.message}"[:LONGEST_CAUSE]


def _may_serve(view: View, revision: str, index: int) -> bool:
    """Whether a pipeline serves, as far as the operator knows: a master that runs and does not answer may serve."""
    report = view.observed.reports.get(revision)
    if report is None:
        return view.observed.admin_port(revision) is not None
    pipeline = names.pipeline_id(revision, index)
    return any(entry.id == pipeline and entry.phase == PipelinePhase.SERVING for entry in report.pipelines)


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
