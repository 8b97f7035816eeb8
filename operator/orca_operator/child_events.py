"""Events of children that do not come up: of StatefulSets that lack pods, and of pods whose containers wait.

Quotas, admission and missing volumes are told by Kubernetes in Events alone: no status names them. Events are read only
for these children, each at most once in READ_SECONDS, and only Events about the creation of pods and about volumes
count: any other Event, of whichever controller, neither is a cause nor hides one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from orca_contract.reasons import Reason

from orca_operator.cluster import Cluster, ClusterError
from orca_operator.diagnose import LONGEST_MESSAGE, Diagnosis, creation_failure
from orca_operator.observe import Object, Observed, container_statuses, is_ending, name_of, owner_uid, pod_condition

logger = logging.getLogger(__name__)

START_SECONDS = 10
"""A pod whose containers wait for less time is not looked at."""
READ_SECONDS = 15
"""Interval between two reads of one child's Events."""
SETTLED_SECONDS = 300
"""The same for a pod whose volumes are mounted, for example while it pulls a large image."""
PAUSE_SECONDS = 60
"""Time without reads after a failed one, for example without the right to read Events."""
MOST_READS = 8
"""Reads of one pass: each is a call to the API server. Further children are read in the next passes."""
LATEST_SECONDS = 1200
"""An older Event does not count: Kubernetes repeats a failed creation after 1,000 s at the latest."""
MOUNT_REASONS = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}
MOUNTED_REASONS = {
    "Pulling", "Pulled", "Created", "Started", "Failed", "BackOff", "FailedCreatePodSandBox", "Unhealthy",
}  # fmt: skip
"""The kubelet mounts all volumes of a pod before the steps that these Events report."""
CREATION_REASON, CREATED_REASON = "FailedCreate", "SuccessfulCreate"
MOUNTING_STATES = {"ContainerCreating", "PodInitializing"}
"""Reasons of containers that wait for the pod's volumes, among others."""
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Finding:
    """The result of a read: the cause, and from when on the Events are read again."""

    cause: Diagnosis | None
    until: datetime


class ChildEvents:
    """Reads the Events of one OrcaDeployment's children. A cause is kept until its child is read again or comes up."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._findings: dict[str, _Finding] = {}
        self._paused_until = NEVER

    def causes(self, namespace: str, children: Sequence[Object], now: datetime) -> dict[str, Diagnosis]:
        """Return the causes by the name of the child. Blocks. A failed read leaves the causes as they are."""
        uids = {_uid(child) for child in children}
        self._findings = {uid: finding for uid, finding in self._findings.items() if uid in uids}
        due = [child for child in children if self._until(child) <= now] if self._paused_until <= now else []
        for child in sorted(due, key=self._until)[:MOST_READS]:
            try:
                events = self._cluster.events(namespace, _uid(child))
            except ClusterError as error:
                logger.warning("%s: cannot read the Events of %s: %s", namespace, name_of(child), error)
                self._paused_until = now + timedelta(seconds=PAUSE_SECONDS)
                break
            cause = cause_of(child, events, now)
            settled = cause is None and any(event.get("reason") in MOUNTED_REASONS for event in events)
            seconds = SETTLED_SECONDS if settled else READ_SECONDS
            self._findings[_uid(child)] = _Finding(cause, now + timedelta(seconds=seconds))
        found = {name_of(child): self._findings[_uid(child)] for child in children if _uid(child) in self._findings}
        return {name: finding.cause for name, finding in found.items() if finding.cause is not None}

    def _until(self, child: Object) -> datetime:
        finding = self._findings.get(_uid(child))
        return NEVER if finding is None else finding.until


def silent_children(observed: Observed, now: datetime) -> list[Object]:
    """Return the children whose Events may say why they do not come up."""
    pods = observed.pods()
    lacking = [
        stateful_set
        for stateful_set in observed.of_kind("StatefulSet")
        if int(stateful_set["spec"]["replicas"]) > sum(owner_uid(pod) == _uid(stateful_set) for pod in pods)
    ]
    return lacking + [pod for pod in pods if _waits(pod, now)]


def cause_of(child: Object, events: Iterable[Object], now: datetime) -> Diagnosis | None:
    """Return what the latest Event about a child's pods or volumes says, None if it names no cause."""
    if child["kind"] == "StatefulSet":
        # Of Events of the same second, the failure is the later one: a controller that can create pods goes on.
        order = [CREATED_REASON, CREATION_REASON]
    else:
        order = [*sorted(MOUNT_REASONS), *sorted(MOUNTED_REASONS)]
    telling = [event for event in events if event.get("reason") in order]
    latest = max(telling, key=lambda event: (_time(event), order.index(event["reason"])), default=None)
    if latest is None or now - _time(latest) > timedelta(seconds=LATEST_SECONDS):
        return None
    name = name_of(child)
    message = f"{name}: {' '.join(str(latest.get('message') or '').split())}"[:LONGEST_MESSAGE]
    if latest["reason"] == CREATION_REASON:
        return Diagnosis(creation_failure(message), message)
    if latest["reason"] in MOUNT_REASONS:
        return Diagnosis(Reason.VOLUME_MOUNT_FAILED, message, name)
    return None


def _waits(pod: Object, now: datetime) -> bool:
    """Whether a pod is on a node, and all its containers wait, perhaps for a volume, for START_SECONDS."""
    if is_ending(pod) or pod_condition(pod, "PodScheduled").get("status") != "True":
        return False
    containers = container_statuses(pod, "initContainerStatuses") + container_statuses(pod)
    states = [(container.get("state") or {}).get("waiting") for container in containers]
    mounting = all(waiting and waiting.get("reason") in MOUNTING_STATES for waiting in states)
    created = pod["metadata"].get("creationTimestamp")
    return mounting and bool(created) and now - datetime.fromisoformat(created) > timedelta(seconds=START_SECONDS)


def _uid(child: Object) -> str:
    return str(child["metadata"]["uid"])


def _time(event: Object) -> datetime:
    """Return the time of an Event's last occurrence. The fields of both Event APIs may be missing or null."""
    series: Mapping[str, str] = event.get("series") or {}
    found = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    try:
        time = datetime.fromisoformat(str(found or event["metadata"].get("creationTimestamp")))
    except ValueError:
        return NEVER
    return time if time.tzinfo else time.replace(tzinfo=UTC)
