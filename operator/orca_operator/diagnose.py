"""Diagnosis why an OrcaDeployment is not ready: the most severe cause, with the message of the pod. Pure.

`look` diagnoses every pod once per pass; plan.py and status.py read the same `View`. `diagnose` adds the masters'
reports and ranks the causes by severity. Reasons are the closed list in orca_contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from orca_contract.reasons import Reason
from orca_contract.state import PipelinePhase, StateReport

from orca_operator.lost_nodes import NO_NODES, Nodes, describe
from orca_operator.names import ADMIN_PORT, MASTER, REVISION_LABEL, ROLE_LABEL, WORKER
from orca_operator.observe import (
    Object,
    Observed,
    container_statuses,
    is_ending,
    is_ready,
    label,
    name_of,
    pod_condition,
    runs,
)

QUOTAS = ("exceeded quota", "failed quota")
"""In the API server's answer to a pod that does not fit into a ResourceQuota, or lacks a value that one demands."""
FETCH_CONTAINER = "fetch-model"
GPU = "nvidia.com/gpu"
MISTAKE_EXIT_CODE = 2
"""Exit code of ORCA's commands for an invalid option, file or model."""
LONGEST_MESSAGE = 800
FEW_RESTARTS = 3
"""A running container with fewer restarts counts as recovering, not as crash-looping."""


NO_FAILURES = (Reason.SERVING, Reason.SUSPENDED, Reason.SCALED_TO_ZERO)
SEVERITY = {reason: rank for rank, reason in enumerate(reason for reason in Reason if reason not in NO_FAILURES)}
"""Most severe first, in the order of the enum."""

PULL_REASONS = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
    "ImageInspectError",
}  # fmt: skip
CONFIG_REASONS = {"CreateContainerConfigError"}
CRASH_REASONS = {"CrashLoopBackOff", "RunContainerError", "CreateContainerError", "ContainerCannotRun", "StartError"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause, and the pod that shows it."""

    reason: Reason
    message: str
    pod: str = ""


NO_CAUSE = Diagnosis(Reason.LOADING_WEIGHTS, "pods are being created")
"""No pod and no master shows a cause."""


UNAUTHORIZED = (
    "the master rejects the operator's token: the admin Secret was replaced, and the pod has the new one within two "
    "minutes; requests are served as before; an older master reads the new token only at its start"
)


@dataclass(frozen=True, slots=True)
class View:
    """Snapshot of the deployment for one pass.

    `diagnoses` maps the name of each pod that is not ready to the cause, and the name of each StatefulSet or Deployment
    that cannot create its pods. `now` is the time of the pass: no decision of the pass reads a clock.
    """

    observed: Observed
    diagnoses: Mapping[str, Diagnosis]
    now: datetime
    nodes: Nodes = NO_NODES


def look(
    observed: Observed, now: datetime, told: Mapping[str, Diagnosis] | None = None, nodes: Nodes = NO_NODES
) -> View:
    """Return the view of a pass that begins at `now`.

    `told`: causes from Events, by the name of the child. The cause in a pod's status is more recent; that of a pod on a
    lost node is outdated.
    """
    children = observed.pods() + observed.of_kind("Deployment")
    found = {name_of(child): cause for child in children if (cause := _diagnose_child(child)) is not None}
    for name, cause in (told or {}).items():
        if name not in found or found[name].reason is Reason.LOADING_WEIGHTS:
            found[name] = cause
    for pod in observed.pods():
        if loss := describe(pod, nodes, now):
            found[name_of(pod)] = _of(Reason.NODE_LOST, name_of(pod), loss)
    return View(observed, found, now, nodes)


def worst(diagnoses: list[Diagnosis]) -> Diagnosis | None:
    """Return the most severe cause, the first of equal ones."""
    return min(diagnoses, key=lambda diagnosis: SEVERITY[diagnosis.reason], default=None)


def diagnose(view: View, revision: str) -> Diagnosis:
    """Return the worst cause why `revision` does not serve yet."""
    observed = view.observed
    # Workers first: among equal causes, the worker's is more specific, because the master waits for workers.
    children = observed.pods(WORKER, revision) + observed.pods(MASTER, revision)
    for kind in ("StatefulSet", "Deployment"):
        children += [child for child in observed.of_kind(kind) if label(child, REVISION_LABEL) == revision]
    causes = [view.diagnoses[name_of(child)] for child in children if name_of(child) in view.diagnoses]
    report = observed.reports.get(revision)
    reported = diagnose_report(report) if report is not None else []
    if any(not runs(pod) for pod in observed.pods(WORKER, revision)):
        # A master that waits for a pod which does not run yet is not a cause.
        reported = [diagnosis for diagnosis in reported if diagnosis.reason is not Reason.RENDEZVOUS_TIMEOUT]
    if cause := diagnose_silence(observed, revision):
        causes.append(cause)
    return worst(causes + reported) or NO_CAUSE


def diagnose_silence(observed: Observed, revision: str) -> Diagnosis | None:
    """Return why the operator has no report of a revision's master, None if it has one or the master is not ready."""
    if revision in observed.unauthorized:
        return Diagnosis(Reason.ADMIN_UNAUTHORIZED, UNAUTHORIZED)
    if revision not in observed.unanswered or not observed.master_is_ready(revision):
        return None
    message = (
        f"the master's pod is ready, but the operator has no report from it: {observed.unanswered[revision]}; "
        f"after a timeout, see whether NetworkPolicies let the operator's pods reach port {ADMIN_PORT} of the master's"
    )
    return Diagnosis(Reason.MASTER_UNREACHABLE, message[:LONGEST_MESSAGE])


def first_silence(observed: Observed, revisions: Sequence[str]) -> Diagnosis | None:
    """Return why the operator has no report of one of several masters, with its revision in the message."""
    for revision in revisions:
        if silence := diagnose_silence(observed, revision):
            return Diagnosis(silence.reason, f"revision {revision}: {silence.message}")
    return None


def _diagnose_child(child: Object) -> Diagnosis | None:
    return diagnose_pod(child) if child["kind"] == "Pod" else diagnose_deployment(child)


def diagnose_deployment(deployment: Object) -> Diagnosis | None:
    """Return why the pod of a Deployment cannot be created, None if it can."""
    for condition in deployment.get("status", {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = condition.get("message", "")
            return _of(creation_failure(message), name_of(deployment), message)
    return None


def is_of_quota(message: str) -> bool:
    """Return whether a ResourceQuota is the reason for the API server's refusal."""
    return any(words in message for words in QUOTAS)


def creation_failure(message: str) -> Reason:
    """Return the reason for the API server's answer to the creation of a pod."""
    return Reason.QUOTA_EXCEEDED if is_of_quota(message) else Reason.POD_CREATION_FAILED


def diagnose_pod(pod: Object) -> Diagnosis | None:  # noqa: PLR0911, one per cause
    """Return why a pod is not ready, None if it is ready or terminating."""
    if is_ending(pod) or is_ready(pod):
        return None
    name, status = name_of(pod), pod.get("status", {})
    if status.get("reason") == "NodeLost" or pod_condition(pod, "Ready").get("reason") == "NodeStatusUnknown":
        return _of(Reason.NODE_LOST, name, f"node {pod.get('spec', {}).get('nodeName', '')} is unreachable")
    scheduled = pod_condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        message = scheduled.get("message", "")
        lacking_gpu = f"Insufficient {GPU}" in message
        return _of(Reason.INSUFFICIENT_GPU if lacking_gpu else Reason.POD_UNSCHEDULABLE, name, message)
    if status.get("phase") == "Failed":
        return _of(_crash_reason(pod), name, f"{status.get('reason', 'failed')}: {status.get('message', '')}")
    for container in container_statuses(pod, "initContainerStatuses"):
        if (diagnosis := _init_container(pod, container)) is not None:
            return diagnosis
    for container in container_statuses(pod):
        if (diagnosis := _container(pod, container)) is not None:
            return diagnosis
    role = label(pod, ROLE_LABEL)
    activity = "waits for its workers" if role == MASTER else "loads its weights, or waits for its pipeline"
    return _of(Reason.LOADING_WEIGHTS, name, activity if runs(pod) else "starts")


def _init_container(pod: Object, container: Object) -> Diagnosis | None:
    state, name = container.get("state", {}), name_of(pod)
    if state.get("terminated", {}).get("exitCode") == 0:
        return None
    if (diagnosis := _waiting(pod, container)) is not None:
        return diagnosis
    if _is_sidecar(pod, container["name"]):
        return None if container.get("started") and "running" in state else _container(pod, container)
    if container["name"] != FETCH_CONTAINER:
        return _of(Reason.LOADING_WEIGHTS, name, f"init container {container['name']} runs")
    failed = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if failed and "running" not in state:
        return _of(Reason.MODEL_DOWNLOAD_FAILED, name, _exit_message(failed))
    return _of(Reason.MODEL_DOWNLOADING, name, "downloads the model")


def _waiting(pod: Object, container: Object) -> Diagnosis | None:
    waiting = container.get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in PULL_REASONS:
        return _of(Reason.IMAGE_PULL_FAILED, name_of(pod), f"{container['image']}: {message or reason}")
    if reason in CONFIG_REASONS:
        return _of(Reason.INVALID_SPEC, name_of(pod), message or reason)
    return None


def _container(pod: Object, container: Object) -> Diagnosis | None:  # noqa: PLR0911, one per cause
    if (diagnosis := _waiting(pod, container)) is not None:
        return diagnosis
    foreign = "" if container["name"] in (MASTER, WORKER) else f"container {container['name']} "
    state = container.get("state", {})
    waiting = state.get("waiting", {}).get("reason", "")
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if not ended or (ended.get("exitCode") == 0 and waiting not in CRASH_REASONS):
        if waiting in CRASH_REASONS:
            return _of(_crash_reason(pod), name_of(pod), state["waiting"].get("message", waiting))
        return None
    if ended.get("reason") == "OOMKilled" and label(pod, ROLE_LABEL) != MASTER:
        limit = _limits(pod, container["name"]).get("memory", "unknown")
        return _of(Reason.WORKER_OOM_KILLED, name_of(pod), f"{foreign}out of memory: the limit is {limit}")
    if label(pod, ROLE_LABEL) == MASTER and not foreign and ended.get("exitCode") == MISTAKE_EXIT_CODE:
        return _of(Reason.INVALID_SPEC, name_of(pod), _exit_message(ended))
    if "running" in state and int(container.get("restartCount", 0)) < FEW_RESTARTS:
        return _of(Reason.RECOVERING, name_of(pod), f"{foreign}was restarted: {_exit_message(ended)}")
    return _of(_crash_reason(pod), name_of(pod), f"{foreign}{_exit_message(ended)}")


def _is_sidecar(pod: Object, name: str) -> bool:
    """Whether an init container runs as long as the pod (`restartPolicy: Always`)."""
    init_containers = pod.get("spec", {}).get("initContainers") or []
    return any(each["name"] == name and each.get("restartPolicy") == "Always" for each in init_containers)


def _limits(pod: Object, name: str) -> Mapping[str, str]:
    """Return the limits of a container of a pod."""
    spec = pod.get("spec", {})
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    limits = (each.get("resources", {}).get("limits") for each in containers if each["name"] == name)
    return next(limits, None) or {}


def _crash_reason(pod: Object) -> Reason:
    return Reason.MASTER_CRASH_LOOP if label(pod, ROLE_LABEL) == MASTER else Reason.WORKER_CRASH_LOOP


def _exit_message(ended: Mapping[str, object]) -> str:
    lines = [line for line in str(ended.get("message") or "").splitlines() if line.strip()]
    message = lines[-1].strip() if lines else str(ended.get("reason") or "no message")
    return f"exit code {ended.get('exitCode')}: {message}"


def diagnose_report(report: StateReport) -> list[Diagnosis]:
    """Return the causes that a master reports for pipelines that do not serve."""
    diagnoses = []
    for pipeline in report.pipelines:
        failure = pipeline.last_failure
        if pipeline.phase == PipelinePhase.SERVING or failure is None:
            continue
        known = isinstance(failure.reason, Reason) and failure.reason in SEVERITY
        reason = Reason(failure.reason) if known else Reason.RECOVERING
        worker = failure.worker.partition(".")[0]
        diagnoses.append(_of(reason, worker, f"pipeline {pipeline.id}: {failure.message}"))
    return diagnoses


def _of(reason: Reason, pod: str, message: str) -> Diagnosis:
    text = f"{pod}: {' '.join(message.split())}" if pod else " ".join(message.split())
    return Diagnosis(reason, text[:LONGEST_MESSAGE], pod)
