"""One row per cause that can be provoked here: Ready says it within 30 s, in words that name it."""

from __future__ import annotations

import json

import pytest
import yaml
from support.kubernetes import MASTER_IMAGE, Namespace, demo_spec, eventually, worker_settings

SECONDS = 120
UNREACHABLE_HUB = [{"name": "HF_ENDPOINT", "value": "http://127.0.0.1:9"}]
ENDLESS = {"name": "wait", "image": "", "command": ["sleep", "300"]}

GREEDY = """
import sys
if {argument!r} in sys.orig_argv:
    taken = b"x" * (1 << 30)
"""
"""A `sitecustomize` with which a process takes 1 GiB when Python starts. All at once and of its own: a limit on what it
reads anyway, code and weights, makes the kernel evict and read those pages for minutes before it gives up."""

ROWS = {
    "ImagePullFailed": (
        demo_spec(worker=worker_settings(image="localhost/nobody-has-this:1")),
        "localhost/nobody-has-this:1",
    ),
    "PodUnschedulable": (
        demo_spec(worker=worker_settings(nodeSelector={"no-node": "has-this"})),
        "node",
    ),
    "PodCreationFailed": (
        demo_spec(worker=worker_settings(priorityClassName="nobody-has-this")),
        "no PriorityClass with name nobody-has-this",
    ),
    "InsufficientGPU": (demo_spec(communication={"backend": "nccl"}), "Insufficient nvidia.com/gpu"),
    "ModelDownloadFailed": (
        demo_spec(
            model={"uri": "hf://nobody/nothing"},
            worker=worker_settings(env=UNREACHABLE_HUB),
            master={"env": UNREACHABLE_HUB},
        ),
        "orca fetch: error: hf://nobody/nothing",
    ),
    "WorkerCrashLoop": (
        demo_spec(worker=worker_settings(env=[{"name": "PYTHONHOME", "value": "/nowhere"}])),
        "exit code 1",
    ),
    "Serving": (demo_spec(), "1 of 1 pipelines serve"),
    "Suspended": (demo_spec(suspend=True), "spec.suspend"),
}


@pytest.mark.parametrize("reason", ROWS)
def test_the_cause_is_named(namespace: Namespace, reason: str):
    spec, words = ROWS[reason]
    namespace.deploy(spec)
    condition = namespace.wait_reason(reason, SECONDS)
    assert words in condition["message"]
    assert condition["status"] == ("True" if reason == "Serving" else "False")
    events = namespace.items("events", "--field-selector", "involvedObject.kind=OrcaDeployment")
    assert reason in {event["reason"] for event in events}


def test_a_pod_that_does_not_fit_the_quota_is_named(namespace: Namespace):
    """Only an Event of its StatefulSet says so. Place for the master and one worker; then for all."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "2"}},
    }
    namespace.apply(quota)
    namespace.deploy(demo_spec(parallelism={"pipelineParallelSize": 2}))
    assert "exceeded quota: small" in namespace.wait_reason("QuotaExceeded", SECONDS)["message"]
    namespace.kubectl("delete", "resourcequota", "small")
    namespace.wait_ready(seconds=180)  # the StatefulSet's controller tries again after up to a minute


def test_a_missing_secret_is_named(namespace: Namespace):
    """Only Events of the pod that waits for it say so."""
    namespace.deploy(demo_spec(auth={"apiKeySecretRef": {"name": "no-such-secret", "key": "keys"}}))
    assert "no-such-secret" in namespace.wait_reason("VolumeMountFailed", 2 * SECONDS)["message"]


@pytest.mark.parametrize("argument", ["worker", "orca_worker.rank"])
def test_a_worker_killed_for_memory_is_named(namespace: Namespace, argument: str):
    """Whichever process the kernel picks: the container's first, of which the kubelet tells, or a rank of its."""
    namespace.apply({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "greedy"},
        "data": {"sitecustomize.py": GREEDY.format(argument=argument)},
    })  # fmt: skip
    settings = worker_settings(
        resources={"limits": {"memory": "512Mi"}, "requests": {"cpu": "10m"}},
        env=[{"name": "PYTHONPATH", "value": "/greedy"}],
        volumes=[{"name": "greedy", "configMap": {"name": "greedy"}}],
        volumeMounts=[{"name": "greedy", "mountPath": "/greedy"}],
    )
    namespace.deploy(demo_spec(worker=settings))
    assert "limit is 512" in namespace.wait_reason("WorkerOOMKilled", SECONDS)["message"]
    events = namespace.items("events", "--field-selector", "reason=WorkerOOMKilled")
    assert {event["involvedObject"]["kind"] for event in events} >= {"OrcaDeployment"}


def test_loading_weights_is_seen(namespace: Namespace):
    """While an init container of the user's runs, nothing else is the matter."""
    settings = worker_settings(initContainers=[{**ENDLESS, "image": MASTER_IMAGE}])
    namespace.deploy(demo_spec(worker=settings))
    assert eventually(lambda: "init container wait runs" in namespace.condition().get("message", ""), SECONDS)
    assert namespace.condition()["reason"] == "LoadingWeights"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parallelism": {"tensorParallelSize": 3}}, "tensor-parallel-size 3 does not fit"),
        ({"parallelism": {"pipelineParallelSize": 9}}, "pipeline-parallel-size 9 does not fit"),
        ({"model": {"uri": "file:///models/none"}}, "/models/none"),
        ({"scheduler": {"maxBatchSize": 64, "tokenBudget": 32}}, "spec.scheduler.tokenBudget"),
        ({"worker": {"podTemplate": {"spec": {"colour": "red"}}}}, "field not declared in schema"),
    ],
)
def test_invalid_specs_are_named(namespace: Namespace, change, words):
    """Rules that only the operator, the master or a worker can check."""
    namespace.deploy(demo_spec(**change))
    assert words in namespace.wait_reason("InvalidSpec", SECONDS)["message"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": {"uri": "http://x"}}, "spec.model.uri"),
        ({"replicas": -1}, "spec.replicas"),
        ({"parallelism": {"tensorParallelSize": 17}}, "spec.parallelism.tensorParallelSize"),
        ({"communication": {"backend": "mpi"}}, "spec.communication.backend"),
        ({"scheduler": {"kvSlots": 1}}, "spec.scheduler.kvSlots"),
    ],
)
def test_what_the_schema_refuses_never_gets_in(namespace: Namespace, change, field):
    answer = namespace.deploy(demo_spec(**change), check=False)
    assert field in answer
    assert "demo" not in namespace.kubectl("get", "orca", "-o", "name")


def test_columns(namespace: Namespace):
    namespace.deploy(demo_spec(parallelism={"pipelineParallelSize": 2}))
    namespace.wait_ready()
    header, row = namespace.kubectl("get", "orca", "-o", "wide").splitlines()
    assert header.split()[:9] == [
        "NAME",
        "MODEL",
        "READY",
        "REASON",
        "DESIRED",
        "AVAILABLE",
        "TPXPP",
        "RESTARTS",
        "URL",
    ]
    url = f"http://demo.{namespace.name}.svc"
    assert row.split()[:9] == ["demo", "file:///models/demo", "True", "Serving", "1", "1", "tp1xpp2", "0", url]


def test_what_the_cluster_does_not_serve_is_skipped_and_said(namespace: Namespace):
    served = namespace.cluster.kubectl("api-resources", "-o", "name")
    assert "podmonitors" not in served, "this cluster has the kind that the test needs to be missing"
    namespace.deploy(demo_spec(monitoring={"enabled": True}))
    namespace.wait_ready()
    applied = namespace.condition("FullyApplied")
    assert (applied["status"], applied["reason"]) == ("False", "KindNotServed")
    assert "PodMonitor" in applied["message"]
    events = namespace.items("events", "--field-selector", "reason=KindNotServed")
    assert len(events) == 1


def test_a_running_deployment_that_is_edited_to_a_bad_spec_keeps_serving(namespace: Namespace):
    namespace.deploy(demo_spec())
    namespace.wait_ready()
    before = {pod["metadata"]["uid"] for pod in namespace.pods()}
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "return_token_ids": True}
    (answer,) = namespace.ask("demo", [body])
    bad = {"spec": {"parallelism": {"tensorParallelSize": 2}, "scheduler": {"maxBatchSize": 64, "tokenBudget": 32}}}
    namespace.kubectl("patch", "orca", "demo", "--type=merge", "-p", json.dumps(bad))
    namespace.wait_reason("InvalidSpec", SECONDS)
    assert namespace.condition("Available")["status"] == "True"
    (again,) = namespace.ask("demo", [body])
    assert again["choices"][0]["token_ids"] == answer["choices"][0]["token_ids"]
    assert {pod["metadata"]["uid"] for pod in namespace.pods()} == before
    good = {"spec": {"parallelism": {"tensorParallelSize": 1}, "scheduler": {"maxBatchSize": 16, "tokenBudget": 32}}}
    namespace.kubectl("patch", "orca", "demo", "--type=merge", "-p", json.dumps(good))
    namespace.wait_ready(seconds=SECONDS)
    assert {pod["metadata"]["uid"] for pod in namespace.pods()} == before, "the knob is live"
    knobs = yaml.safe_load(namespace.get("cm", boot_of(namespace))["data"]["master.yaml"])
    assert knobs["max-batch-size"] == 16


def boot_of(namespace: Namespace) -> str:
    (name,) = (child.partition("/")[2] for child in namespace.children() if child.startswith("ConfigMap/"))
    return name
