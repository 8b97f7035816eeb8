"""The status of an OrcaDeployment from the observed state. Pure: the previous status and the time are arguments.

conditions.py has the conditions, this file all other fields: counts, revisions, the settings in force and an entry for
each pipeline. A status that equals the previous one is not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from orca_contract.reasons import Reason
from orca_contract.state import FailureReport, PipelinePhase, StateReport

from orca_operator import names
from orca_operator.conditions import (
    Rollout,
    Situation,
    find_condition,
    make_condition,
    make_conditions,
    rfc3339,
)
from orca_operator.diagnose import LONGEST_MESSAGE
from orca_operator.observe import is_ready, label, ordinal, restarts
from orca_operator.progress import count_ready
from orca_operator.restart_budget import NO_RESTARTS

SCHEDULER_FIELDS = ("maxBatchSize", "maxQueueDepth", "maxExpectedWaitSeconds", "tokenBudget", "admission", "policy")
RECOVERY_FIELDS = ("stallTimeoutSeconds", "recoveryTimeoutSeconds")
SETTINGS = ("scheduler", "recoveryPolicy", "drainTimeoutSeconds")
"""Fields of the status with the settings in force."""
REPORTED = ("phase", "epoch", "lastFailure")
"""Fields of a pipeline's entry that come from its master."""


def make_status(situation: Situation, previous: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole status."""
    spec, observed = situation.spec, situation.view.observed
    pipelines = _pipelines(situation, previous)
    desired = situation.desired
    rollout = Rollout(
        desired,
        _serving(situation, pipelines),
        _current_revision(situation, pipelines, previous),
        count_ready(pipelines, situation.revision),
    )
    workers = observed.pods(names.WORKER)
    with_pods = {(label(pod, names.REVISION_LABEL), ordinal(pod)) for pod in workers}
    status: dict[str, Any] = {
        "observedGeneration": situation.generation,
        "replicas": len(with_pods),
        "readyReplicas": sum(_all_ready(pipeline["readyWorkers"]) for pipeline in pipelines),
        "availableReplicas": rollout.available,
        "updatedReplicas": sum(revision == situation.revision for revision, _ in with_pods),
        "selector": names.scale_selector(situation.name),
        "currentRevision": rollout.current,
        "updateRevision": situation.revision or previous.get("updateRevision", ""),
        "url": f"http://{situation.name}.{situation.namespace}.svc",
        "restarts": sum(restarts(pod) for pod in observed.pods()),
        "topology": previous.get("topology", ""),
        "pipelines": pipelines,
    }
    if (stop := situation.recovery.stop) is not None:
        status["stopped"] = stop.entry()
    revision = rollout.current or situation.revision or ""
    if observed.is_silent(revision) and revision == (previous.get("currentRevision") or previous.get("updateRevision")):
        status |= {name: previous[name] for name in SETTINGS if name in previous}
    else:
        status |= _settings_in_force(observed.reports.get(revision))
    if spec is not None:
        shape = spec.parallelism
        status["topology"] = f"tp{shape.tensor_parallel_size}xpp{shape.pipeline_parallel_size}"
    status["conditions"] = make_conditions(situation, rollout, previous)
    compact: dict[str, Any] = _without_empty(status)
    return compact


def with_failure(previous: Mapping[str, Any], failure: str, generation: int, now: datetime) -> dict[str, Any]:
    """Return the status after a pass that the API server has failed: the previous one with FullyApplied False.

    A new OrcaDeployment gets `Ready` beside it.
    """
    kept = [entry for entry in previous.get("conditions") or [] if entry["type"] != "FullyApplied"]
    message, before = failure[:LONGEST_MESSAGE], find_condition(previous, "FullyApplied")
    if not kept:
        kept = [make_condition("Ready", False, Reason.LOADING_WEIGHTS.value, message, generation, {}, now)]
    applied = make_condition("FullyApplied", False, "NotApplied", message, generation, before, now)
    return {**previous, "conditions": [*kept, applied]}


def merge_patch(status: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON merge patch (RFC 7386) from `previous` to `status`: all fields, and null for those to remove."""
    patch: dict[str, Any] = dict.fromkeys(set(previous) - set(status))
    for name, value in status.items():
        before = previous.get(name)
        patch[name] = merge_patch(value, before) if isinstance(value, dict) and isinstance(before, dict) else value
    return patch


def _settings_in_force(report: StateReport | None) -> dict[str, Any]:
    """Return the settings in force from a master's report, as far as its version reports them."""
    knobs = None if report is None else report.in_force or report.scheduler
    if knobs is None:
        return {}
    values = knobs.model_dump(by_alias=True, exclude_none=True)
    fields: dict[str, Any] = {
        "scheduler": {name: _number(values[name]) for name in SCHEDULER_FIELDS if name in values},
        "recoveryPolicy": {name: _number(values[name]) for name in RECOVERY_FIELDS if name in values},
    }
    stall_timeout = fields["recoveryPolicy"].get("stallTimeoutSeconds")
    if isinstance(stall_timeout, float):  # neither an integer nor a string, as the field is in the schema
        fields["recoveryPolicy"]["stallTimeoutSeconds"] = str(stall_timeout)
    if "drainTimeoutSeconds" in values:
        fields["drainTimeoutSeconds"] = _number(values["drainTimeoutSeconds"])
    return {name: entry for name, entry in fields.items() if entry}


def _number(value: Any) -> Any:
    """Return a whole number as an integer, as it stands in the spec."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without_empty(value: Any) -> Any:
    """Drop empty strings: an API server of 1.20 reads them as null and rejects the whole status."""
    if isinstance(value, dict):
        return {key: _without_empty(entry) for key, entry in value.items() if entry != ""}
    return [_without_empty(entry) for entry in value] if isinstance(value, list) else value


def _serving(situation: Situation, pipelines: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of serving pipelines by revision, without those of masters that accept no requests."""
    observed = situation.view.observed
    revisions = {pipeline["revision"] for pipeline in pipelines}
    return {
        revision: sum(
            pipeline["revision"] == revision and pipeline["phase"] == PipelinePhase.SERVING for pipeline in pipelines
        )
        for revision in sorted(revisions)
        if observed.master_is_ready(revision)
    }


def _current_revision(situation: Situation, pipelines: list[dict[str, Any]], previous: Mapping[str, Any]) -> str:
    """Return the revision that serves, or served last; during a rollout, the old one."""
    serving, desired = _serving(situation, pipelines), situation.desired
    current, wanted = str(previous.get("currentRevision", "")), situation.revision or ""
    if wanted and 0 < desired <= serving.get(wanted, 0):
        return wanted
    if current in situation.view.observed.revisions():
        return current
    candidates = [wanted, *serving]
    return next((revision for revision in candidates if serving.get(revision)), "")


def _pipelines(situation: Situation, previous: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of all revisions, those of the spec's revision first.

    The phases of a ready master without a report are those of the previous status, as long as all workers of the
    pipeline are ready: its pod is ready only while it accepts requests.
    """
    observed, wanted = situation.view.observed, situation.revision
    others = sorted(observed.revisions() - {wanted})
    entries = _pipelines_of(situation, wanted, situation.desired) if situation.spec and wanted else []
    entries += [entry for revision in others for entry in _pipelines_of(situation, revision, 0)]
    before = {entry["id"]: entry for entry in previous.get("pipelines") or []}
    for entry in entries:
        known = observed.is_silent(entry["revision"]) and entry["id"] in before
        if known and _all_ready(entry["readyWorkers"]):
            entry |= {key: value for key, value in before[entry["id"]].items() if key in REPORTED}
        entry.update(situation.recovery.budgets.get(entry["id"], NO_RESTARTS).entry())
    return entries


def _pipelines_of(situation: Situation, revision: str, desired: int) -> list[dict[str, Any]]:
    """Return the entries of one revision: for the desired pipelines, and for all that have pods."""
    observed = situation.view.observed
    master = observed.reports.get(revision)
    reported = {report.id: report for report in master.pipelines} if master is not None else {}
    indices = {ordinal(pod) for pod in observed.pods(names.WORKER, revision)} | set(range(desired))
    pipelines = []
    for index in sorted(indices):
        report = reported.get(names.pipeline_id(revision, index))
        pods = observed.workers(revision, index)
        pipeline = {
            "id": names.pipeline_id(revision, index),
            "index": index,
            "phase": str(report.phase if report is not None else PipelinePhase.PENDING),
            "revision": revision,
            "epoch": report.epoch if report is not None else 0,
            "readyWorkers": f"{sum(map(is_ready, pods))}/{_partitions(situation, revision)}",
        }
        if report is not None and report.last_failure is not None:
            pipeline["lastFailure"] = _last_failure(report.last_failure)
        pipelines.append(pipeline)
    return pipelines


def _partitions(situation: Situation, revision: str) -> int:
    """Return the number of partitions of a revision."""
    if situation.spec is not None and revision == situation.revision:
        return situation.spec.parallelism.pipeline_parallel_size
    stateful_sets = situation.view.observed.of_kind("StatefulSet")
    return sum(label(stateful_set, names.REVISION_LABEL) == revision for stateful_set in stateful_sets)


def _last_failure(failure: FailureReport) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "time": rfc3339(datetime.fromtimestamp(failure.at, UTC)),
        "reason": str(failure.reason),
        "pod": failure.worker.partition(".")[0],
        "message": failure.message,
    }
    if failure.recovery_seconds is not None:
        entry["recoverySeconds"] = round(failure.recovery_seconds)
    return entry


def _all_ready(ready_workers: str) -> bool:
    ready, _, size = ready_workers.partition("/")
    return ready == size
