"""Edits of the pods under streams through the Service: broken ones change nothing that serves, good ones lose none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.kubernetes import Namespace, demo_spec, eventually
from support.pod_streams import streams_go_on

SECONDS = 120
"""From an edit to its effect or its cause in the status."""
BROKEN = {
    "ImagePullFailed": {"worker": {"image": "localhost/orca-worker:no-such-tag"}},
    "InvalidSpec": {"worker": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
    "PodUnschedulable": {"worker": {"nodeSelector": {"no": "such-node"}}},
}
"""Edits by the reason that the status has to name; the second one is rejected by the API server only."""
GOOD: list[dict[str, Any]] = [
    {"parallelism": {"pipelineParallelSize": 2}},
    {"worker": {"env": [{"name": "OF_THE_TEST", "value": "1"}]}},
]


def test_edits_under_load_lose_nothing(namespace: Namespace):
    """Every broken edit and its way back leave the pods as they are; every good one replaces all of them."""
    settings = demo_spec()["worker"]
    namespace.deploy(demo_spec(model={"uri": "file:///models/demo", "dtype": "float32"}))
    namespace.wait_ready()
    available: list[int] = []

    def holds(condition: Callable[[dict[str, Any]], bool]) -> Callable[[], bool]:
        def now() -> bool:
            status = namespace.get("orca", "demo")["status"]
            available.append(status.get("availableReplicas", 0))
            return condition(status)

        return now

    with streams_go_on(namespace) as numbers:
        serving = pods(namespace)
        for reason, edit in BROKEN.items():
            patch(namespace, edit)
            named = holds(lambda status, reason=reason: ready(status)["reason"] == reason)
            assert eventually(named, SECONDS), (reason, ready(namespace.get("orca", "demo")["status"]))
            assert ready(namespace.get("orca", "demo")["status"])["status"] == "False"
            assert serving <= pods(namespace), "nothing that serves is deleted"
            patch(namespace, {"worker": {**dict.fromkeys(edit["worker"]), **settings}})
            assert eventually(holds(lambda status: ready(status)["status"] == "True"), SECONDS)
            assert eventually(lambda: pods(namespace) == serving, SECONDS), "the edit back restarts nothing"
        for edit in GOOD:
            before = pods(namespace)
            revision = namespace.get("orca", "demo")["status"]["currentRevision"]
            patch(namespace, edit)
            assert eventually(
                holds(lambda status, revision=revision: ready(status)["status"] == "True"
                      and status["currentRevision"] != revision), SECONDS
            )  # fmt: skip
            assert eventually(lambda before=before: not before & pods(namespace), SECONDS), "all are replaced"
    assert min(numbers) > len(BROKEN) + len(GOOD)
    assert min(available) >= 1
    print(f"{sum(numbers)} streams of {len(numbers)} bodies, {len(available)} polls")


def ready(status: dict[str, Any]) -> dict[str, Any]:
    """Return the condition Ready if it speaks of the latest generation."""
    (condition,) = (entry for entry in status["conditions"] if entry["type"] == "Ready")
    return dict(condition)


def pods(namespace: Namespace) -> set[str]:
    """Return the uids of the deployment's pods."""
    return {pod["metadata"]["uid"] for pod in namespace.pods()}


def patch(namespace: Namespace, spec: dict[str, Any]) -> None:
    """Edit the spec, and wait until the status speaks of the edit."""
    namespace.kubectl("patch", "orca", "demo", "--type=merge", "-p", json.dumps({"spec": spec}))
    resource = namespace.get("orca", "demo")
    generation = resource["metadata"]["generation"]
    assert eventually(lambda: namespace.get("orca", "demo")["status"]["observedGeneration"] >= generation, SECONDS)
