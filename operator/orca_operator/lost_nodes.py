"""Lost nodes, and the pods on them that are deleted by force, so that Kubernetes replaces them elsewhere. Pure.

A node is lost while the status of its condition Ready is Unknown: the node life-cycle controller sets it when the
kubelet has not reported for the node monitor's grace period. Without its kubelet a pod on the node never ends: the
eviction by a taint only sets its deletionTimestamp, and a StatefulSet waits for the end before it creates the
successor, which has the same name. A kubelet that reports that its node is not ready (status False) can end pods.

Pods alone do not tell a lost node from a long drain: only pods that were ready are marked when their node is lost, and
a deletionTimestamp has no cause. So node_reader.py reads the nodes of pods that are not ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from orca_operator.actions import ForceDelete
from orca_operator.observe import Object, Observed, is_ending, is_ready, pod_condition

OVERDUE = timedelta(seconds=60)
"""After the end of its grace period, a pod on a node with a kubelet has ended."""


@dataclass(frozen=True, slots=True)
class LostNode:
    """`since`: when the node was marked as lost; `read_at`: the time of the pass that read so."""

    since: datetime
    read_at: datetime


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
    """Return since when a node is lost, None if its kubelet reports."""
    ready = pod_condition(node, "Ready")
    if ready.get("status") != "Unknown" or not ready.get("lastTransitionTime"):
        return None
    return datetime.fromisoformat(ready["lastTransitionTime"])


def describe(pod: Object, nodes: Nodes, now: datetime) -> str:
    """Return since when a pod's node is lost, or that it may be and the operator cannot tell; "" otherwise."""
    node = node_of(pod)
    if (loss := nodes.lost.get(node)) is not None:
        return (
            f"node {node} is lost since {loss.since:%Y-%m-%dT%H:%M:%SZ}; "
            "the pod is replaced after recoveryPolicy.nodeFailureGraceSeconds"
        )
    if nodes.refusal and node and (_was_marked(pod) or _is_overdue(pod, now)):
        return f"node {node} may be lost, and the pod is not replaced: {nodes.refusal}"
    return ""


def forced_deletions(observed: Observed, nodes: Nodes, grace: timedelta, now: datetime) -> list[ForceDelete]:
    """Return the deletions of all pods on nodes that have been lost for `grace`, as this pass has read.

    A node that was lost in an earlier pass, and could not be read in this one, may have come back.
    """
    return [
        ForceDelete(pod, node_of(pod), loss.since)
        for pod in observed.pods()
        if (loss := nodes.lost.get(node_of(pod))) is not None
        and loss.read_at == now
        and now - loss.since >= grace
        and not _is_forced(pod)
    ]


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
