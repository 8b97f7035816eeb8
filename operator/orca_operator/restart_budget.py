"""The restarts of one pipeline, counted against `recoveryPolicy.maxRestarts` per `restartWindowSeconds`. Pure.

A restart is a rise of the restart count of a worker container, a worker pod that failed by itself (phase Failed
without the condition DisruptionTarget, for example because its node rejects it), or a replacement of all pods by
recovery.py. A pod that was evicted, deleted or lost with its node is no restart, and neither is its successor.
One failure may end the workers of several partitions: a pipeline has restarted as often as the partition with the most
restarts.

The window begins with its first restart. The counts are in the status, so that the restart of an operator grants no new
budget. A pod counts at most once per pass, because the times of restarts while no operator runs are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from orca_operator.api import RecoveryPolicy
from orca_operator.names import PARTITION_LABEL, WORKER
from orca_operator.observe import Object, container_statuses, is_ending, label, pod_condition


@dataclass(frozen=True, slots=True)
class PodRestarts:
    """Restarts of one partition.

    `uid`: of the present pod; `seen`: its restarts that are counted; `counted`: restarts in the window, also of earlier
    pods; `is_replaced`: the deletion of this pod is counted.
    """

    uid: str
    seen: int
    counted: int = 0
    is_replaced: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """Restarts by partition, and the begin of the window, None before the first restart."""

    since: datetime | None = None
    partitions: Mapping[int, PodRestarts] = field(default_factory=dict)

    @property
    def restarts(self) -> int:
        """Restarts of the pipeline in the window."""
        return max((partition.counted for partition in self.partitions.values()), default=0)

    def with_restart(self, partitions: Iterable[int], now: datetime) -> Budget:
        """Return the budget after one more restart of these partitions."""
        counted = {
            partition: replace(self.partitions[partition], counted=self.partitions[partition].counted + 1)
            for partition in partitions
        }
        return Budget(self.since or now, {**self.partitions, **counted}) if counted else self

    def with_replacement(self, now: datetime) -> Budget:
        """Return the budget after the replacement of all pods; unchanged if that of these pods is counted."""
        if all(partition.is_replaced for partition in self.partitions.values()):
            return self
        after = self.with_restart(self.partitions, now)
        partitions = {key: replace(partition, is_replaced=True) for key, partition in after.partitions.items()}
        return replace(after, partitions=partitions)

    def entry(self) -> dict[str, Any]:
        """Return the fields of the pipeline in the status."""
        pods = [
            {"partition": key, "uid": pod.uid, "seen": pod.seen, "counted": pod.counted, "isReplaced": pod.is_replaced}
            for key, pod in sorted(self.partitions.items())
            if pod.seen or pod.counted
        ]
        fields: dict[str, Any] = {"restartedPods": pods} if pods else {}
        if self.since is not None:
            fields |= {"restarts": self.restarts, "restartsSince": f"{self.since:%Y-%m-%dT%H:%M:%SZ}"}
        return fields


NO_RESTARTS = Budget()


def read_budget(entry: Mapping[str, Any]) -> Budget:
    """Return the budget in a pipeline's entry of the status."""
    since = entry.get("restartsSince")
    return Budget(
        datetime.fromisoformat(since) if since else None,
        {
            pod["partition"]: PodRestarts(pod["uid"], pod["seen"], pod["counted"], pod["isReplaced"])
            for pod in entry.get("restartedPods") or []
        },
    )


def begin_window(budget: Budget, policy: RecoveryPolicy, serves: bool, now: datetime) -> Budget:
    """Return the budget without the restarts of a window that is over; a time in the future is corrected to `now`.

    A pipeline beyond its budget keeps its restarts until it serves.
    """
    if budget.since is None:
        return budget
    since = min(budget.since, now)
    if now - since < timedelta(seconds=policy.restart_window_seconds):
        return replace(budget, since=since)
    if budget.restarts > policy.max_restarts and not serves:
        return replace(budget, since=since)
    return Budget(None, {partition: replace(pod, counted=0) for partition, pod in budget.partitions.items()})


def count(budget: Budget, pods: Sequence[Object], now: datetime) -> Budget:
    """Return the budget after the restarts of these worker pods that are not counted yet."""
    partitions, restarted = dict(budget.partitions), []
    for pod in pods:
        if is_ending(pod):
            continue
        partition, uid, seen = int(label(pod, PARTITION_LABEL)), str(pod["metadata"]["uid"]), _restarts(pod)
        before = partitions.get(partition, PodRestarts(uid, 0))
        if before.uid != uid:
            before = PodRestarts(uid, 0, before.counted)
        if seen > before.seen:
            restarted.append(partition)
        partitions[partition] = replace(before, seen=seen)
    return replace(budget, partitions=partitions).with_restart(restarted, now)


def _restarts(pod: Object) -> int:
    """Return the restarts of a pod's worker container, and one more if the pod failed by itself."""
    workers = [status for status in container_statuses(pod) if status["name"] == WORKER]
    disrupted = pod_condition(pod, "DisruptionTarget").get("status") == "True"
    has_failed = pod.get("status", {}).get("phase") == "Failed" and not disrupted
    return sum(int(status.get("restartCount", 0)) for status in workers) + has_failed
