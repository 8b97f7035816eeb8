"""Edits under twenty streams through the Service to two partitions: each takes effect, and no request fails.

Every test prints a line: seconds until the effect, and the lowest number of serving pipelines until then. An edit of
the tensor parallelism or of the type of the numbers changes the sums of the model's arithmetic, so that tokens may
differ: there the streams are compared by their lengths.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.edits import Effect, Status, edit, evict, pods, serves, take_effect
from support.kubernetes import Kubernetes, Namespace, demo_spec, eventually, helm, worker_settings
from support.pod_streams import TWENTY, streams_go_on

LIVE_SECONDS = 5
"""From an edit of a live setting to its effect, which takes two seconds, and kubectl on the same processors."""
SECONDS = 180
"""From an edit to a new revision that serves, on a node whose processors the streams use."""
AFTER_SECONDS = 5
"""Streams run on for so long on a new revision."""
CHART = str(Path(__file__).parents[2] / "charts" / "orca")
SPEC = demo_spec(
    model={"uri": "file:///models/demo", "dtype": "float32"},
    parallelism={"pipelineParallelSize": 2},
    scheduler={"maxBatchSize": 4, "maxExpectedWaitSeconds": 3600},  # two revisions on two processors are an overload
    worker=worker_settings(resources={"requests": {"cpu": "10m", "memory": "512Mi"}}),
)
WORKER_IMAGE = os.environ.get("OTHER_WORKER_IMAGE", os.environ.get("WORKER_IMAGE", "localhost/orca-worker:dev"))
"""OTHER_WORKER_IMAGE: another tag that the nodes have; by default the edit names the tag that runs already."""
OPERATOR_IMAGE = os.environ.get("OPERATOR_IMAGE", "localhost/orca-operator:dev")
OTHER_OPERATOR_IMAGE = os.environ.get("OTHER_OPERATOR_IMAGE", OPERATOR_IMAGE)
"""An operator of another version, which takes over and gives back; by default of the same version."""
RENAMED = {"model": {"name": "renamed"}}
Edits = dict[str, dict[str, Any]]
SAME_SUMS: Edits = {"pipelineParallelSize 2 to 3": {"parallelism": {"pipelineParallelSize": 3}}}
FURTHER_SAME_SUMS: Edits = {
    "image": {"worker": {"image": WORKER_IMAGE}},
    "environment": {
        "worker": {"env": [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "A", "value": "b"}]},
    },
    "resources": {"worker": {"resources": {"requests": {"cpu": "20m"}}}},
    "model": RENAMED,
}
OTHER_SUMS: Edits = {
    "dtype": {"model": {"dtype": "bfloat16"}},
    "tensorParallelSize 1 to 2": {"parallelism": {"tensorParallelSize": 2}},
}
"""Edits that begin a revision, one after another; those of SAME_SUMS and FURTHER_SAME_SUMS do not change the tokens.
A revision takes a minute and more while streams use two processors: CI tries that of SAME_SUMS alone."""
NAMED = """
import json, sys, urllib.error, urllib.request
for name in sys.argv[2:]:
    body = json.dumps({"model": name, "prompt": [1], "max_tokens": 1}).encode()
    request = urllib.request.Request(sys.argv[1], body, {"Content-Type": "application/json"})
    try:
        print(urllib.request.urlopen(request).status)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
"""
"""Program for a pod: one request per model name; prints statuses, and the bodies of errors."""
BODY = {"prompt": [1, 2, 3], "max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def report(what: str, effect: Effect) -> None:
    print(f"{what}: {effect.seconds:.1f} s, at least {effect.fewest} pipelines served")


@pytest.mark.parametrize(
    ("edits", "equal"),
    [
        pytest.param(SAME_SUMS, True, id="same sums"),
        pytest.param(FURTHER_SAME_SUMS, True, id="further same sums", marks=pytest.mark.long),
        pytest.param(OTHER_SUMS, False, id="other sums", marks=pytest.mark.long),
    ],
)
def test_new_revisions_take_over_without_a_failed_request(namespace: Namespace, edits: Edits, equal: bool):
    namespace.deploy(SPEC)
    namespace.wait_ready()
    with streams_go_on(namespace, TWENTY, equal) as numbers:
        for what, changes in edits.items():
            before, revision = pods(namespace), namespace.get("orca", "demo")["status"]["currentRevision"]

            def replaced(status: Status, revision: str = revision) -> bool:
                return serves(status) and status["currentRevision"] != revision

            effect = take_effect(namespace, changes, replaced, SECONDS)
            assert eventually(lambda old=before: not old & pods(namespace), SECONDS), "the old revision goes"
            assert effect.fewest >= 1
            report(what, effect)
            time.sleep(AFTER_SECONDS)
    assert min(numbers) >= 1


@pytest.mark.long
def test_after_an_edit_of_the_model_the_old_name_gets_a_clear_answer(namespace: Namespace):
    namespace.deploy(SPEC)
    namespace.wait_ready()
    namespace.ask("demo", [BODY])  # the client is there
    before = pods(namespace)
    edit(namespace, RENAMED)
    assert eventually(lambda: not before & pods(namespace), SECONDS)
    program = ("exec", "client", "--", "python3", "-c", NAMED, "http://demo/v1/completions", "renamed", "demo")
    renamed, old = namespace.kubectl(*program).splitlines()
    assert renamed == "200"
    assert old.startswith("404 ")
    assert "the model 'demo' does not exist, this server serves 'renamed'" in old


def test_a_live_setting_takes_effect_and_restarts_nothing(namespace: Namespace):
    namespace.deploy(SPEC)
    namespace.wait_ready()
    before = pods(namespace)

    def in_force(status: Status) -> bool:
        return bool(status["scheduler"]["maxBatchSize"] == 16)

    with streams_go_on(namespace, TWENTY) as numbers:
        effect = take_effect(namespace, {"scheduler": {"maxBatchSize": 16}}, in_force, LIVE_SECONDS)
        time.sleep(AFTER_SECONDS)
    assert pods(namespace) == before
    assert effect.fewest == 1
    assert min(numbers) >= 1
    report("maxBatchSize 4 to 16", effect)


@pytest.mark.long
def test_pipelines_come_and_go(namespace: Namespace):
    """test_scaling.py does so with an operator that is ended meanwhile; here are the seconds of each edit."""
    namespace.deploy(SPEC)
    namespace.wait_ready()
    master, first = namespace.master(), namespace.workers()
    with streams_go_on(namespace, TWENTY) as numbers:
        for replicas in (3, 1):

            def scaled(status: Status, replicas: int = replicas) -> bool:
                phases = [pipeline["phase"] for pipeline in status["pipelines"]]
                return serves(status) and phases == ["Serving"] * replicas

            effect = take_effect(namespace, {"replicas": replicas}, scaled, SECONDS)
            assert effect.fewest >= 1
            report(f"replicas to {replicas}", effect)
            time.sleep(AFTER_SECONDS)
    assert min(numbers) >= 1
    assert namespace.master() == master
    assert namespace.workers() == first


def test_suspend_and_resume(namespace: Namespace):
    """The way back has the same revision and the same answers. Requests meanwhile fail: nothing listens."""
    namespace.deploy(SPEC)
    namespace.wait_ready()
    (answer,) = namespace.ask("demo", [BODY])
    revision = namespace.get("orca", "demo")["status"]["currentRevision"]
    suspended = take_effect(namespace, {"suspend": True}, lambda status: not serves(status), 30)
    namespace.wait_reason("Suspended", 30)
    assert eventually(lambda: not namespace.pods(), SECONDS), "running requests are finished first"
    resumed = take_effect(namespace, {"suspend": False}, serves, SECONDS)
    status = namespace.get("orca", "demo")["status"]
    assert status["currentRevision"] == revision
    (again,) = namespace.ask("demo", [BODY])
    assert again["choices"] == answer["choices"]
    print(f"suspend: {suspended.seconds:.1f} s; resume: {resumed.seconds:.1f} s to the first serving pipeline")


@pytest.mark.long
def test_the_operator_is_upgraded_deleted_and_evicted_under_streams(
    namespace: Namespace, cluster: Kubernetes, operator: str
):
    """Serving does not depend on it, its end restarts no pod, and the one that follows takes up the next edit."""
    namespace.deploy(SPEC)
    namespace.wait_ready()
    before, own = pods(namespace), Namespace(cluster, operator)
    generations = workloads(namespace)
    with streams_go_on(namespace, TWENTY) as numbers:
        upgrade(operator, "streams", OTHER_OPERATOR_IMAGE)
        for end in ("delete", "evict", "force"):
            (pod,) = operators(own)
            if end == "evict":
                evict(own, pod)
            else:
                force = ("--force", "--grace-period=0") if end == "force" else ("--wait=false",)
                own.kubectl("delete", "pod", pod, *force)
            assert eventually(lambda old=pod: operators(own) and old not in operators(own), SECONDS)
            own.kubectl("rollout", "status", "deployment/orca", "--timeout=150s")
            assert pods(namespace) == before, end
        assert workloads(namespace) == generations, "nothing was written"
        effect = take_effect(
            namespace, {"scheduler": {"maxBatchSize": 8}}, lambda status: status["scheduler"]["maxBatchSize"] == 8, 60
        )
        report("maxBatchSize after the operator's end", effect)
    assert min(numbers) >= 1
    assert pods(namespace) == before
    upgrade(operator, "null", OPERATOR_IMAGE)
    own.kubectl("rollout", "status", "deployment/orca", "--timeout=150s")
    assert eventually(lambda: len(operators(own)) == 1, SECONDS)
    edit(namespace, {"scheduler": {"maxBatchSize": 4}})
    assert eventually(lambda: namespace.get("orca", "demo")["status"]["scheduler"]["maxBatchSize"] == 4, 60)
    assert pods(namespace) == before, "the way back restarts nothing either"


def upgrade(operator: str, value: str, image: str) -> None:
    """Run `helm upgrade` with an image, and an annotation that replaces the operator's pod in any case."""
    values = f"podAnnotations.orca-test={value},images.operator={image}"
    helm("upgrade", "orca", CHART, "--namespace", operator, "--reuse-values", "--set", values,
         "--wait", "--timeout", "150s")  # fmt: skip


def operators(own: Namespace) -> list[str]:
    """Return the names of the operator's pods that are not on their way out."""
    found = own.items("pods", "-l", "app.kubernetes.io/name=orca-operator")
    return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


def workloads(namespace: Namespace) -> dict[str, int]:
    """Return the generations of the deployment's workloads."""
    found = namespace.items("deployments,statefulsets", "-l", "orca-serving.io/deployment=demo")
    return {item["metadata"]["name"]: item["metadata"]["generation"] for item in found}
