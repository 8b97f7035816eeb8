"""The status of an OrcaDeployment from the observed state. Pure: the previous status and the time are arguments.

conditions.py has the conditions, this file all other fields: counts, revisions and an entry for each pipeline. A status
that equals the previous one is not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from orca_contract.state import FailureReport, PipelinePhase

from orca_operator import names
from orca_operator.conditions import Situation, make_conditions, rfc3339
from orca_operator.observe import is_ready, ordinal, restarts


def make_status(situation: Situation, previous: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole status."""
    spec, observed = situation.spec, situation.view.observed
    serving_revision = _serving_revision(situation, previous)
    pipelines = _pipelines(situation, serving_revision)
    desired = spec.num_pipelines if spec is not None else 0
    serving = sum(pipeline["phase"] == PipelinePhase.SERVING for pipeline in pipelines)
    master_ready = bool(serving_revision) and observed.master_is_ready(serving_revision)
    available = serving if master_ready else 0
    status: dict[str, Any] = {
        "observedGeneration": situation.generation,
        "replicas": len({ordinal(pod) for pod in observed.pods(names.WORKER)}),
        "readyReplicas": sum(_all_ready(pipeline["readyWorkers"]) for pipeline in pipelines),
        "availableReplicas": available,
        "updatedReplicas": len(pipelines) if serving_revision == situation.revision else 0,
        "selector": names.scale_selector(situation.name),
        "currentRevision": serving_revision,
        "updateRevision": situation.revision or previous.get("updateRevision", ""),
        "url": f"http://{situation.name}.{situation.namespace}.svc",
        "restarts": sum(restarts(pod) for pod in observed.pods()),
        "topology": previous.get("topology", ""),
        "pipelines": pipelines,
    }
    if spec is not None:
        shape = spec.parallelism
        status["topology"] = f"tp{shape.tensor_parallel_size}xpp{shape.pipeline_parallel_size}"
    status["conditions"] = make_conditions(situation, desired, available, master_ready, serving_revision, previous)
    compact: dict[str, Any] = _without_empty(status)
    return compact


def _without_empty(value: Any) -> Any:
    """Drop empty strings: an API server of 1.20 reads them as null and rejects the whole status."""
    if isinstance(value, dict):
        return {key: _without_empty(entry) for key, entry in value.items() if entry != ""}
    return [_without_empty(entry) for entry in value] if isinstance(value, list) else value


def _serving_revision(situation: Situation, previous: Mapping[str, Any]) -> str:
    """Return the revision that has workloads: the desired one, or the one that it replaces."""
    existing = situation.view.observed.revisions()
    current = str(previous.get("currentRevision", ""))
    if situation.revision is not None and (situation.revision in existing or current not in existing):
        return situation.revision
    return current


def _pipelines(situation: Situation, revision: str) -> list[dict[str, Any]]:
    observed = situation.view.observed
    master = observed.reports.get(revision)
    reported = {report.id: report for report in master.pipelines} if master is not None else {}
    indices = {ordinal(pod) for pod in observed.pods(names.WORKER, revision)}
    if situation.spec is not None and situation.revision == revision:
        indices |= set(range(situation.spec.num_pipelines))
    pipelines = []
    for index in sorted(indices):
        report = reported.get(names.pipeline_id(revision, index))
        pods = observed.workers(revision, index)
        size = situation.spec.parallelism.pipeline_parallel_size if situation.spec else len(pods)
        pipeline = {
            "id": names.pipeline_id(revision, index),
            "index": index,
            "phase": str(report.phase if report is not None else PipelinePhase.PENDING),
            "revision": revision,
            "epoch": report.epoch if report is not None else 0,
            "readyWorkers": f"{sum(map(is_ready, pods))}/{size}",
        }
        if report is not None and report.last_failure is not None:
            pipeline["lastFailure"] = _last_failure(report.last_failure)
        pipelines.append(pipeline)
    return pipelines


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
