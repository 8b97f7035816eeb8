"""Edits of an OrcaDeployment on a cluster, and how long they take to have an effect."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.kubernetes import Namespace, eventually

Status = dict[str, Any]
POLL_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Effect:
    """What an edit took: seconds until its effect, and the lowest number of serving pipelines until then."""

    seconds: float
    fewest: int


def edit(namespace: Namespace, spec: dict[str, Any]) -> int:
    """Merge a patch into the spec of the OrcaDeployment `demo`; return its generation."""
    patch = json.dumps({"spec": spec})
    namespace.kubectl("patch", "orca", "demo", "--type=merge", "-p", patch)
    return int(namespace.get("orca", "demo")["metadata"]["generation"])


def take_effect(namespace: Namespace, spec: dict[str, Any], holds: Callable[[Status], bool], seconds: float) -> Effect:
    """Edit the spec, and wait until the status speaks of the edit and `holds` returns True."""
    begin = time.monotonic()
    generation = edit(namespace, spec)
    asked, fewest, last = begin, [], Status()

    def there() -> bool:
        nonlocal asked, last
        asked = time.monotonic()
        last = namespace.get("orca", "demo")["status"]
        fewest.append(last.get("availableReplicas", 0))
        return last["observedGeneration"] >= generation and holds(last)

    assert eventually(there, seconds, POLL_SECONDS), last
    return Effect(asked - begin, min(fewest))


def ready(status: Status) -> dict[str, Any]:
    """Return the condition Ready."""
    (condition,) = (entry for entry in status["conditions"] if entry["type"] == "Ready")
    return dict(condition)


def serves(status: Status) -> bool:
    """Whether the deployment serves as its spec says."""
    return bool(ready(status)["status"] == "True")


def pods(namespace: Namespace) -> set[str]:
    """Return the uids of the deployment's pods."""
    return {pod["metadata"]["uid"] for pod in namespace.pods()}


def staying(namespace: Namespace) -> set[str]:
    """Return the uids of the deployment's pods that are not being deleted.

    A kubelet of 1.20 may take minutes to end a pod whose image it could not pull.
    """
    return {pod["metadata"]["uid"] for pod in namespace.pods() if "deletionTimestamp" not in pod["metadata"]}


def evict(namespace: Namespace, pod: str) -> None:
    """Evict a pod, as `kubectl drain` does."""
    eviction = {
        "apiVersion": "policy/v1" if namespace.cluster.has_cel else "policy/v1beta1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace.name},
    }
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
    namespace.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
