"""Lost nodes, and the pods on them that are deleted by force, so that Kubernetes replaces them elsewhere. Pure.

A node is lost while the status of its condition Ready is Unknown and the node has the taint `unreachable` with the
effect NoExecute: the node life-cycle controller sets both when the kubelet has not reported for the node monitor's
grace period. It withholds the taint while most nodes of a zone, or all, are silent: then their kubelets, not their
pods, are probably cut off, and nothing is deleted. Without its kubelet a pod on the node never ends: the eviction only
sets its deletionTimestamp, and a StatefulSet waits for the end before it creates the successor, which has the same
name. A kubelet that reports that its node is not ready (status False) can end pods.

Pods alone do not tell a lost node from a long drain: only pods that were ready are marked when their node is lost, and
a deletionTimestamp has no cause. So node_reader.py reads the nodes of pods that are not ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from orca_operator.actions import ForceDelete
from orca_operator.observe import Object, Observed, is_ending, is_ready, pod_condition

UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""Taint by which an administrator says that the node is switched off, so that its volumes can be detached."""
OVERDUE = timedelta(seconds=60)
"""After the end of its grace period, a pod on a node with a kubelet has ended."""


@dataclass(frozen=True, slots=True)
class LostNode:
    """`since`: when the node was marked as lost; `read_at`: the time of the pass that read so.

    `is_off`: an administrator has said that the node is switched off (OUT_OF_SERVICE).
    """

    since: datetime
    read_at: datetime
    is_off: bool = False


@dataclass(frozen=True, slots=True)
class Nodes:
    """The lost nodes by name; `refusal`: why the operator may not read nodes, "" if it may."""

    lost: Mapping[str, LostNode] = field(default_factory=dict)
    refusal: str = ""


NO_NODES = Nodes()
"""No node was read, because every pod is ready."""


def node_of(pod: Object) -> str:
    """Return the name of a pod's node, "" for a pod that is not scheduled."""
    return str(pod.get("spec", {}).get("nodeName") or "")


def suspect_nodes(observed: Observed) -> set[str]:
    """Return the names of the nodes of pods that are not ready or terminate."""
    return {node_of(pod) for pod in observed.pods() if not is_ready(pod)} - {""}


def lost_since(node: Object) -> datetime | None:
    """Return since when a node is lost, None if it is not."""
    ready = pod_condition(node, "Ready")
    if ready.get("status") != "Unknown" or not ready.get("lastTransitionTime") or not has_taint(node, UNREACHABLE):
        return None
    return datetime.fromisoformat(ready["lastTransitionTime"])


def has_taint(node: Object, key: str) -> bool:
    """Return whether a node has a taint with the effect NoExecute."""
    taints = node.get("spec", {}).get("taints") or []
    return any(taint["key"] == key and taint["effect"] == "NoExecute" for taint in taints)


def describe(pod: Object, nodes: Nodes, now: datetime) -> str:
    """Return since when a pod's node is lost, or that it may be and the operator cannot tell; "" otherwise."""
    node = node_of(pod)
    if (loss := nodes.lost.get(node)) is not None:
        since = f"node {node} is lost since {loss.since:%Y-%m-%dT%H:%M:%SZ}; "
        if _is_forced(pod):
            return f"{since}a finalizer keeps the deleted pod"
        if _writes_volume(pod) and not loss.is_off:
            return (
                f"{since}the pod writes to a volume and is not replaced until the node has the taint {OUT_OF_SERVICE}"
            )
        return f"{since}the pod is replaced after recoveryPolicy.nodeFailureGraceSeconds"
    if nodes.refusal and node and (_was_marked(pod) or _is_overdue(pod, now)):
        return f"node {node} may be lost, and the pod is not replaced: {nodes.refusal}"
    return ""


def forced_deletions(observed: Observed, nodes: Nodes, grace: timedelta, now: datetime) -> list[ForceDelete]:
    """Return the deletions of all pods that have been on a lost node for `grace`, as this pass has read.

    A node that was lost in an earlier pass, and could not be read in this one, may have come back. A pod that tolerates
    the taint can be scheduled to the lost node again, and has a grace of its own. A pod that writes to a volume stays:
    the kubelet may be cut off while the pod writes, and without the pod Kubernetes attaches the volume elsewhere.
    """
    return [
        ForceDelete(pod, node_of(pod), loss.since)
        for pod in observed.pods()
        if (loss := nodes.lost.get(node_of(pod))) is not None
        and loss.read_at == now
        and now - max(loss.since, _created(pod)) >= grace
        and (loss.is_off or not _writes_volume(pod))
        and not _is_forced(pod)
    ]


def _created(pod: Object) -> datetime:
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"])


def _writes_volume(pod: Object) -> bool:
    """Whether a container of a pod mounts a PersistentVolumeClaim with the right to write."""
    spec = pod.get("spec", {})
    claims = {
        volume["name"]
        for volume in spec.get("volumes") or []
        if (claim := volume.get("persistentVolumeClaim")) is not None and not claim.get("readOnly")
    }
    mounts = [mount for container in spec.get("containers") or [] for mount in container.get("volumeMounts") or []]
    return any(mount["name"] in claims and not mount.get("readOnly") for mount in mounts)


def _is_forced(pod: Object) -> bool:
    """Whether a pod was deleted by force and only a finalizer keeps it."""
    return is_ending(pod) and pod["metadata"].get("deletionGracePeriodSeconds") == 0


def _was_marked(pod: Object) -> bool:
    """Whether the node life-cycle controller has marked a pod as not ready.

    It changes the status of Ready alone; a kubelet gives a reason, and also changes ContainersReady.
    """
    ready = pod_condition(pod, "Ready")
    marked = ready.get("status") == "False" and not ready.get("reason")
    return marked and pod_condition(pod, "ContainersReady").get("status") == "True"


def _is_overdue(pod: Object, now: datetime) -> bool:
    """Whether a kubelet would have ended a pod: `deletionTimestamp` is the end of its grace period."""
    ends = pod["metadata"].get("deletionTimestamp")
    return bool(ends) and now - datetime.fromisoformat(ends) > OVERDUE
