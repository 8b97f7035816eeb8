"""To zero and back on a cluster: the last pipeline of an idle deployment leaves, and waiting requests bring it back.

Neither an adapter for custom metrics nor KEDA is needed: the autoscaler acts above one pipeline.
"""

from __future__ import annotations

import time

from support.kubernetes import Namespace, demo_spec, eventually

DELAY = 10
"""Seconds without a request."""
REQUESTS, PROMPTS = 4, 5
"""HTTP requests at once, and prompts of each: 20 requests in the master's queue."""


def restarts(namespace: Namespace) -> dict[str, int]:
    """Return the container restarts of the master's pod, by its name."""
    return {
        pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        for pod in namespace.pods()
        if "-master-" in pod["metadata"]["name"]
    }


def test_twenty_waiting_requests_bring_an_idle_deployment_back(namespace: Namespace, record_property):
    namespace.deploy(demo_spec(autoscaling={"minReplicas": 0, "maxReplicas": 2, "scaleDownDelaySeconds": DELAY}))
    namespace.wait_ready()
    body = {"prompt": [[1, 2, 3 + index] for index in range(PROMPTS)], "max_tokens": 1, "temperature": 0}
    (expected,) = namespace.ask("demo", [body])
    for _ in range(2):
        namespace.wait_reason("ScaledToZero", 120)
        assert eventually(lambda: namespace.workers() == [], 60)
        assert namespace.condition("MasterServing")["status"] == "True"
        masters = restarts(namespace)
        begin = time.monotonic()
        answers = namespace.ask("demo", [body] * REQUESTS)
        record_property("seconds to the first token of all", time.monotonic() - begin)
        texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
        assert texts == [[choice["text"] for choice in expected["choices"]]] * REQUESTS
        assert restarts(namespace) == masters, "the master is the waiting room"
        namespace.wait_ready()
    deployment = namespace.get("orca", "demo")
    assert deployment["spec"].get("replicas", 1) == 1, "the operator writes no spec"
