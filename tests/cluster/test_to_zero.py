"""To zero and back on a cluster: the last pipeline of an idle deployment leaves, and waiting requests bring it back,
whatever becomes of the spec meanwhile. With `replicas: 0` clients get 503 and the reason.

Neither an adapter for custom metrics nor KEDA is needed: the autoscaler acts above one pipeline.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.kubernetes import Namespace, demo_spec, eventually

DELAY = 10
"""Seconds without a request."""
END_SECONDS = 180
"""From the end of a pipeline to the end of its pods; kubelet 1.20 reports some ends 40 s late."""
REQUESTS, PROMPTS = 4, 5
"""HTTP requests at once, and prompts of each: 20 requests in the master's queue."""
BODY = {"prompt": [[1, 2, 3 + index] for index in range(PROMPTS)], "max_tokens": 1, "temperature": 0}
STATUS = """
import sys, urllib.error, urllib.request
try:
    body, headers = b'{"prompt": [1], "max_tokens": 1}', {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(sys.argv[1], body, headers), timeout=10) as answer:
        print(answer.status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
"""Program for a pod: posts a completion and prints the status, and the body of an error."""


def restarts(namespace: Namespace) -> dict[str, int]:
    """Return the container restarts of the masters' pods, by name."""
    return {
        pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        for pod in namespace.pods()
        if "-master-" in pod["metadata"]["name"]
    }


def texts(answers: list[dict[str, Any]]) -> list[list[str]]:
    return [[choice["text"] for choice in answer["choices"]] for answer in answers]


def deploy(namespace: Namespace) -> list[list[str]]:
    """Deploy with a minimum of 0; return the undisturbed answer to BODY, once for each of REQUESTS."""
    namespace.deploy(demo_spec(autoscaling={"minReplicas": 0, "maxReplicas": 2, "scaleDownDelaySeconds": DELAY}))
    namespace.wait_ready()
    return texts(namespace.ask("demo", [BODY])) * REQUESTS


def wait_asleep(namespace: Namespace) -> None:
    namespace.wait_reason("ScaledToZero", 120)
    assert eventually(lambda: namespace.workers() == [], END_SECONDS)
    assert namespace.condition("MasterServing")["status"] == "True"


def edit(namespace: Namespace, spec: dict[str, Any]) -> None:
    namespace.kubectl("patch", "orca/demo", "--type=merge", "-p", json.dumps({"spec": spec}))


def test_twenty_waiting_requests_bring_an_idle_deployment_back(namespace: Namespace):
    """Prints the seconds from the requests to the first tokens of all; the node has the image."""
    expected = deploy(namespace)
    for _ in range(2):
        wait_asleep(namespace)
        masters = restarts(namespace)
        begin = time.monotonic()
        answers = namespace.ask("demo", [BODY] * REQUESTS)
        seconds = time.monotonic() - begin
        assert texts(answers) == expected
        print(f"to zero and back: {REQUESTS * PROMPTS} requests have their first token after {seconds:.1f} s")
        assert restarts(namespace) == masters, "the master is the waiting room"
        namespace.wait_ready()
    deployment = namespace.get("orca", "demo")
    assert deployment["spec"].get("replicas", 1) == 1, "the operator writes no spec"


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param([{"restart": {"id": "2"}}], id="a new revision", marks=pytest.mark.long),
        pytest.param(
            [{"worker": {"image": "localhost/no-such-image:0"}}], id="one that cannot start", marks=pytest.mark.long
        ),
        pytest.param(
            [{"worker": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}],
            id="a rejected spec",
            marks=pytest.mark.long,
        ),
        pytest.param(
            [{"restart": {"id": "2"}}, {"restart": {"id": "3"}}, {"restart": None}],
            id="edited back",
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_edit_loses_no_waiting_request(namespace: Namespace, operator: str, edits):
    """The edits come before, with and after the requests; the operator ends by force in between."""
    expected = deploy(namespace)
    wait_asleep(namespace)
    edit(namespace, edits[0])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(namespace.ask, "demo", [BODY] * REQUESTS)
        namespace.cluster.kubectl("-n", operator, "delete", "pods", "--all", "--force", "--grace-period=0")
        for spec in edits[1:]:
            edit(namespace, spec)
        assert texts(asked.result(200)) == expected
    edit(namespace, {"restart": {"id": "last"}, "worker": {"image": None, "tolerations": None}})
    namespace.wait_ready()
    assert texts(namespace.ask("demo", [BODY] * REQUESTS)) == expected
    assert eventually(lambda: len(restarts(namespace)) == 1, 120), "the old revisions end"


def test_without_pipelines_clients_learn_why(namespace: Namespace):
    namespace.deploy(demo_spec())
    namespace.wait_ready()
    namespace.ask("demo", [BODY])  # the client's pod is there
    edit(namespace, {"replicas": 0})
    namespace.wait_reason("Suspended", 60)
    assert eventually(lambda: namespace.workers() == [], END_SECONDS)
    program = ("exec", "client", "--", "python3", "-c", STATUS, "http://demo/v1/completions")

    def refuses() -> bool:
        """Whether one answer has the status and the reason: a second request may come between two masters."""
        answer = namespace.kubectl(*program, check=False)
        return answer.startswith("503 ") and "spec.replicas is 0" in answer

    assert eventually(refuses, 60)
    first = namespace.master()
    edit(namespace, {"restart": {"id": "2"}})
    assert eventually(lambda: first not in namespace.kubectl("get", "pods", "--output=name"), END_SECONDS)
    assert eventually(refuses, 60), "a new master, which has never served"
    edit(namespace, {"replicas": 1})
    namespace.wait_ready()
    assert namespace.kubectl(*program).startswith("200")
