"""Pods in an `Api`: created and deleted like by Kubernetes' controllers, with statuses like a kubelet's."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from orca_operator.names import REVISION_LABEL, ROLE_LABEL
from orca_operator.observe import is_ending, is_ready, label

from support.api_server import Api

NAMESPACE = "default"


def _container(state: dict[str, Any], restarts: int = 0, last: dict[str, Any] | None = None) -> dict[str, Any]:
    entry = {"image": "orca:test", "restartCount": restarts, "state": state}
    return entry | ({"lastState": {"terminated": last}} if last else {})


OUT_OF_MEMORY = {"exitCode": 137, "reason": "OOMKilled"}
MISTAKE = {"exitCode": 2, "reason": "Error", "message": "orca: error: no model in /models/demo\n"}
CRASH = {"exitCode": 1, "reason": "Error", "message": "Traceback\nRuntimeError: the driver is too old\n"}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
PULLING = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "orca:test"'}}
TOO_FEW_GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
STATES: dict[str, dict[str, Any]] = {
    "Unschedulable": {"scheduled": TOO_FEW_GPUS},
    "NoRoom": {"scheduled": "0/3 nodes are available: 3 Insufficient cpu."},
    "ImagePullBackOff": {"container": _container(PULLING)},
    "Downloading": {"container": _container({"waiting": {"reason": "PodInitializing"}}), "init": {"running": {}}},
    "Creating": {"container": _container({"waiting": {"reason": "ContainerCreating"}})},
    "Running": {"container": _container({"running": {}})},
    "Ready": {"container": _container({"running": {}}), "ready": True},
    "OOMKilled": {"container": _container(BACK_OFF, 1, OUT_OF_MEMORY)},
    "Crashing": {"container": _container(BACK_OFF, 4, CRASH)},
    "Mistaken": {"container": _container(BACK_OFF, 1, MISTAKE)},
    "Restarted": {"container": _container({"running": {}}, 1, CRASH)},
    "NodeLost": {"container": _container({"running": {}}), "reason": "NodeStatusUnknown"},
}
"""States of `set_state`, beside Deleted and Terminating."""


def follow_workloads(api: Api, now: datetime) -> None:
    """Create and delete pods to match the replicas of StatefulSets and Deployments."""
    owners: dict[str, dict[str, Any]] = {}
    for kind, prefix in (("StatefulSet", ""), ("Deployment", "5c9f8-")):
        for workload in [body for (of, _), body in api.objects.items() if of == kind]:
            for index in range(workload["spec"]["replicas"]):
                owners[f"{workload['metadata']['name']}-{prefix}{index}"] = workload
    for name in [name for kind, name in api.objects if kind == "Pod" and name not in owners]:
        api.remove("Pod", name)
    for name, workload in owners.items():
        if ("Pod", name) not in api.objects:
            template = workload["spec"]["template"]
            reference = {"kind": workload["kind"], "uid": workload["metadata"]["uid"], "controller": True}
            labels = template["metadata"]["labels"]
            metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [reference],
                        "creationTimestamp": now.isoformat()}  # fmt: skip
            api.put({"kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}})


def set_state(api: Api, name: str, state: str) -> None:
    """Set a pod's state of STATES, mark the pod for deletion (Terminating), or delete it (Deleted)."""
    pod = api.objects["Pod", name]
    if state == "Deleted":
        api.remove("Pod", name)
    elif state == "Terminating":
        api.put({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    else:
        api.put({**pod, "status": _status(pod, **STATES[state]), "state": state})


def set_node(api: Api, name: str, lost: bool, now: datetime) -> None:
    """Set the condition of a node, as the node life-cycle controller or the kubelet would."""
    ready = {"type": "Ready", "status": "Unknown" if lost else "True", "lastTransitionTime": now.isoformat()}
    taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}] if lost else []
    node = {"kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}, "status": {"conditions": [ready]}}
    api.put(node)


def _status(
    pod: dict[str, Any],
    container: dict[str, Any] | None = None,
    init: dict[str, Any] | None = None,
    ready: bool = False,
    scheduled: str = "",
    reason: str = "",
) -> dict[str, Any]:
    conditions = [
        {"type": "PodScheduled", "status": "False" if scheduled else "True", "message": scheduled},
        {"type": "Ready", "status": "True" if ready else "False", "reason": reason},
    ]
    status = {"phase": "Running" if container else "Pending", "conditions": conditions}
    if container is not None:
        status |= {"podIP": address(pod), "containerStatuses": [{"name": label(pod, ROLE_LABEL), **container}]}
    if init is not None:
        status["initContainerStatuses"] = [{"name": "fetch-model", "image": "orca:test", "state": init}]
    return status


def address(pod: dict[str, Any]) -> str:
    """Return the pod's IP address; a recreated pod has another address."""
    number = int(pod["metadata"]["uid"].removeprefix("uid-"))
    return f"10.0.{number // 256}.{number % 256}"


def state_of(pod: dict[str, Any]) -> str:
    """Return the pod's state, as set by `set_state`."""
    return "Terminating" if is_ending(pod) else str(pod.get("state", "Pending"))


def serves(api: Api, addresses: list[str]) -> bool:
    """Return True if the pods of these worker addresses are ready."""
    pods = [api.objects.get(("Pod", entry.partition(".")[0])) for entry in addresses]
    return all(pod is not None and is_ready(pod) for pod in pods)


def revision_of(pod: dict[str, Any]) -> str:
    """Return the revision of a pod."""
    return label(pod, REVISION_LABEL)
