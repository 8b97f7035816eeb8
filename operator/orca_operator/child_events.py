"""Warning Events of children that do not come up: of StatefulSets that lack pods, and of pods whose containers wait.

Quotas, admission and missing volumes are told by Kubernetes in Events alone: no status names them. Events are read only
for these children, and only the latest of each child counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from orca_contract.reasons import Reason

from orca_operator.cluster import Cluster, ClusterError
from orca_operator.diagnose import LONGEST_MESSAGE, Diagnosis, creation_failure
from orca_operator.observe import Object, Observed, container_statuses, is_ending, name_of, owner_uid, pod_condition

logger = logging.getLogger(__name__)

START_SECONDS = 10
"""A pod whose containers wait for less time is not looked at."""
LATEST_SECONDS = 1200
"""An older Event does not count: Kubernetes repeats a failed creation after 1,000 s at the latest."""
MOUNT_REASONS = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}
CREATION_REASON = "FailedCreate"


def silent_children(observed: Observed, now: datetime) -> list[Object]:
    """Return the children whose Events may say why they do not come up."""
    pods = observed.pods()
    lacking = [
        stateful_set
        for stateful_set in observed.of_kind("StatefulSet")
        if int(stateful_set["spec"]["replicas"]) > sum(owner_uid(pod) == _uid(stateful_set) for pod in pods)
    ]
    return lacking + [pod for pod in pods if _waits(pod, now)]


def read_causes(cluster: Cluster, namespace: str, children: Iterable[Object], now: datetime) -> dict[str, Diagnosis]:
    """Return the causes by the name of the child. Blocks. Without the right to read Events the result is empty."""
    causes = {}
    for child in children:
        try:
            events = cluster.warnings(namespace, _uid(child))
        except ClusterError as error:
            logger.warning("%s: cannot read the Events of %s: %s", namespace, name_of(child), error)
            break
        if (cause := cause_of(child, events, now)) is not None:
            causes[name_of(child)] = cause
    return causes


def cause_of(child: Object, events: Iterable[Object], now: datetime) -> Diagnosis | None:
    """Return what the latest Warning Event of a child says, None without one that names a cause."""
    latest = max(events, key=_time, default=None)
    if latest is None or now - _time(latest) > timedelta(seconds=LATEST_SECONDS):
        return None
    reason, name = str(latest.get("reason", "")), name_of(child)
    message = f"{name}: {' '.join(str(latest.get('message', '')).split())}"[:LONGEST_MESSAGE]
    if child["kind"] == "StatefulSet" and reason == CREATION_REASON:
        return Diagnosis(creation_failure(message), message)
    if child["kind"] == "Pod" and reason in MOUNT_REASONS:
        return Diagnosis(Reason.VOLUME_MOUNT_FAILED, message, name)
    return None


def _waits(pod: Object, now: datetime) -> bool:
    """Whether a pod is on a node, and none of its containers has started for START_SECONDS."""
    if is_ending(pod) or pod_condition(pod, "PodScheduled").get("status") != "True":
        return False
    containers = container_statuses(pod, "initContainerStatuses") + container_statuses(pod)
    started = any(set(container.get("state", {})) - {"waiting"} for container in containers)
    created = pod["metadata"].get("creationTimestamp")
    return not started and bool(created) and now - datetime.fromisoformat(created) > timedelta(seconds=START_SECONDS)


def _uid(child: Object) -> str:
    return str(child["metadata"]["uid"])


def _time(event: Object) -> datetime:
    """Return the time of an Event's last occurrence."""
    series: Mapping[str, str] = event.get("series") or {}
    found = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return datetime.fromisoformat(str(found or event["metadata"]["creationTimestamp"]))
