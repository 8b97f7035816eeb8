"""A Node object without a kubelet is lost with the pods that the scheduler has put there; the real node takes over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.kubernetes import MASTER_IMAGE, Namespace, demo_spec, eventually, worker_settings

LABEL = "orca-serving.io/test-lost"
GRACE_SECONDS = 30
LOST_SECONDS = 180
"""Until the node life-cycle controller marks the node: 40 or 50 s after its last report, and every 5 s."""
REPLACED_SECONDS = GRACE_SECONDS + 60
PREFERRED = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]}}
        ]
    }
}
"""Pods go to the node without a kubelet as long as it counts as ready."""


@pytest.fixture
def kubeletless(namespace: Namespace) -> Iterator[str]:
    """Yield the name of a Node that has reported once."""
    name = f"{namespace.name}-lost"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {LABEL: ""}}}
    namespace.apply(node)
    room = {"cpu": "64", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {
        "type": "Ready", "status": "True", "reason": "Started", "lastHeartbeatTime": now, "lastTransitionTime": now,
    }  # fmt: skip
    patch = json.dumps({"status": {"capacity": room, "allocatable": room, "conditions": [ready]}})
    try:
        namespace.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", patch)
        # The node life-cycle controller removes the taint of a new node when it sees the report.
        assert eventually(lambda: not namespace.get("node", name)["spec"].get("taints"), 30)
        yield name
    finally:
        namespace.kubectl("delete", "node", name, "--wait=false")


def places(namespace: Namespace) -> dict[str, str]:
    """Return the nodes of the pods by uid, "" for a pod that is not scheduled."""
    return {pod["metadata"]["uid"]: pod["spec"].get("nodeName", "") for pod in namespace.pods()}


def spec() -> dict[str, Any]:
    deployment = demo_spec(
        worker=worker_settings(affinity=PREFERRED),
        recoveryPolicy={"nodeFailureGraceSeconds": GRACE_SECONDS},
    )
    return {**deployment, "master": {**deployment["master"], "affinity": PREFERRED}}


def test_pods_of_a_lost_node_are_replaced_on_another_node(namespace: Namespace, kubeletless: str):
    """Without the forced deletion the worker's StatefulSet waits for ever for the end of its pod."""
    namespace.deploy(spec())
    assert eventually(lambda: list(places(namespace).values()) == [kubeletless] * 2, 30), places(namespace)
    before = places(namespace)
    message = namespace.wait_reason("NodeLost", LOST_SECONDS)["message"]
    assert f"node {kubeletless} is lost since " in message
    assert not before.keys() - places(namespace).keys(), "the grace is not over"
    assert eventually(lambda: not before.keys() & places(namespace).keys(), REPLACED_SECONDS), namespace.pods()
    namespace.wait_ready()
    assert kubeletless not in places(namespace).values()
    events = namespace.items("events", "--field-selector", "reason=PodForceDeleted")
    assert len(events) == len(before)
    assert all(f"node {kubeletless} is lost since " in event["message"] for event in events)


@pytest.mark.long
def test_a_long_end_on_a_node_with_a_kubelet_is_not_cut_short(namespace: Namespace):
    """Process 1 of the init container ignores SIGTERM, so that its pod ends with its grace period."""
    endless = {"name": "wait", "image": MASTER_IMAGE, "command": ["sleep", "300"]}
    settings = worker_settings(initContainers=[endless])
    namespace.deploy(demo_spec(worker=settings, recoveryPolicy={"nodeFailureGraceSeconds": 1}, drainTimeoutSeconds=90))
    assert eventually(lambda: any(waits(pod) for pod in namespace.pods()), 60), namespace.pods()
    (worker,) = namespace.workers()
    uid = namespace.get("pod", worker)["metadata"]["uid"]
    namespace.kubectl("delete", "pod", worker, "--wait=false")
    assert not eventually(lambda: uid not in places(namespace), 30)
    assert namespace.get("pod", worker)["metadata"]["deletionTimestamp"]
    assert namespace.items("events", "--field-selector", "reason=PodForceDeleted") == []


def waits(pod: dict[str, Any]) -> bool:
    """Return whether a pod's init container runs."""
    return any("running" in container["state"] for container in pod["status"].get("initContainerStatuses", []))
