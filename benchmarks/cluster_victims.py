"""The pods of an OrcaDeployment that a benchmark ends, and how: killed containers, deletions, a whole restart."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from operator_cost import kubectl, until

NAME = "recovery"
"""Of the OrcaDeployment."""
KILL = "kill -9 $(cat /proc/1/task/1/children)"
"""Ends the container's main process, the child of its init process."""

Pods = dict[str, tuple[str, bool]]
"""Identity of the container (pod uid and restarts) and readiness, by the name of the pod."""


def pods() -> Pods:
    """Return the pods of the OrcaDeployment that are not being deleted."""
    found: Pods = {}
    for pod in json.loads(kubectl("get", "pods", "-l", f"orca-serving.io/deployment={NAME}", "-o", "json"))["items"]:
        status = pod["status"]
        restarts = sum(entry["restartCount"] for entry in status.get("containerStatuses", []))
        ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in status.get("conditions", []))
        if "deletionTimestamp" not in pod["metadata"]:
            found[pod["metadata"]["name"]] = (f"{pod['metadata']['uid']} {restarts}", ready)
    return found


def kill_containers(names: list[str]) -> None:
    """Kill the main processes of the pods' containers."""
    for name in names:  # the shell ends with its container, so kubectl fails
        subprocess.run(["kubectl", "exec", name, "--", "sh", "-c", KILL], capture_output=True, check=False)


def delete(names: list[str]) -> None:
    """Delete pods with their grace period, as an eviction does."""
    kubectl("delete", "pod", *names, "--wait=false")


def delete_by_force(names: list[str]) -> None:
    """Delete pods without a grace period."""
    kubectl("delete", "pod", *names, "--force", "--grace-period=0")


def victims() -> dict[str, tuple[Callable[[Pods], list[str]], Callable[[list[str]], None]]]:
    """Return for each victim the function that chooses its pods, and the function that ends them."""
    parts: dict[str, Callable[[Pods], list[str]]] = {
        "worker of partition 0": lambda found: [name for name in found if "-p0-" in name],
        "worker of partition 1": lambda found: [name for name in found if "-p1-" in name],
        "master": lambda found: [name for name in found if "-master-" in name],
    }
    ends = {"container killed": kill_containers, "pod deleted": delete, "pod deleted by force": delete_by_force}
    return {
        **{f"{how}: {part}": (choose, end) for how, end in ends.items() for part, choose in parts.items()},
        "all pods deleted by force (whole restart)": (list, delete_by_force),
    }


def end_and_wait(choose: Callable[[Pods], list[str]], end: Callable[[list[str]], None]) -> None:
    """End the chosen pods or containers, and wait until others have taken their place and all are ready."""
    before = pods()
    names = choose(before)
    gone = {before[name][0] for name in names}
    end(names)

    def replaced() -> bool:
        now = pods().values()
        return len(now) == len(before) and all(ready and identity not in gone for identity, ready in now)

    until(replaced, 0.2)
