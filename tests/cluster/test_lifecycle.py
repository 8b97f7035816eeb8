"""Deletion, re-creation, namespaces, rights, restarts of the operator, and silence at rest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from orca_bench import operator_metrics
from orca_operator.names import FIELD_MANAGER
from support.kubernetes import Kubernetes, Namespace, demo_spec, eventually, helm, images

ROOT = Path(__file__).parents[2]
POD_SECONDS = 120
"""Until a deleted pod's object is gone. Its processes end within seconds (45 with a drain); kubelet 1.20 takes up to 50
more to tell the API server."""
BODY = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "return_token_ids": True}


def test_deletion_removes_everything_and_a_new_one_starts_at_once(namespace: Namespace):
    namespace.deploy(demo_spec())
    namespace.wait_ready()
    first = {pod["metadata"]["uid"] for pod in namespace.pods()}
    namespace.kubectl("delete", "orca", "demo", "--wait=false")
    namespace.deploy(demo_spec())
    assert eventually(lambda: not first & {pod["metadata"]["uid"] for pod in namespace.pods()}, POD_SECONDS)
    namespace.wait_ready(seconds=150)  # a StatefulSet waits longer and longer while the old pod's name is taken
    assert len(namespace.ask("demo", [BODY])) == 1
    namespace.kubectl("delete", "orca", "demo")
    assert eventually(lambda: gone_but_pods(namespace), 60), namespace.children()
    assert eventually(lambda: namespace.children() == [], POD_SECONDS), namespace.children()


def test_what_is_under_way_is_finished_before_a_deletion(namespace: Namespace):
    """Master and workers get their signal together; the drain keeps all of them until every answer is whole."""
    parallelism = {"pipelineParallelSize": 2}
    namespace.deploy(demo_spec(parallelism=parallelism, scheduler={"maxBatchSize": 1}, drainTimeoutSeconds=300))
    namespace.wait_ready()
    namespace.ask("demo", [BODY])  # the client is there
    long = [{**BODY, "max_tokens": 900, "ignore_eos": True}] * 6  # two run, four wait
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(namespace.ask, "demo", long)
        assert eventually(lambda: namespace.unfinished("demo") == len(long), 30, interval=0.1), "they are under way"
        namespace.kubectl("delete", "orca", "demo", "--wait=false")
        answers = asked.result(290)
    assert [len(answer["choices"][0]["token_ids"]) for answer in answers] == [900] * len(long)


def gone_but_pods(namespace: Namespace) -> bool:
    """Whether nothing is left but pods on their way out."""
    ending = {f"Pod/{pod['metadata']['name']}" for pod in namespace.pods() if "deletionTimestamp" in pod["metadata"]}
    return set(namespace.children()) <= ending


def test_what_runs_in_a_pod(namespace: Namespace):
    """One process tree under an init that reaps, no root, nothing to write to, no token of the API server."""
    namespace.deploy(demo_spec())
    namespace.wait_ready()
    for pod in (found["metadata"]["name"] for found in namespace.pods()):
        inside = ("exec", pod, "--", "sh", "-c")
        assert "dumb-init" in namespace.kubectl(*inside, "tr '\\0' ' ' < /proc/1/cmdline")
        assert namespace.kubectl(*inside, "id -u").strip() == "10001"
        assert "Read-only file system" in namespace.kubectl(*inside, "touch /x", check=False)
        assert "No such file" in namespace.kubectl(*inside, "ls /var/run/secrets/kubernetes.io", check=False)
        # A process whose parent ends first goes to process 1, which has to take its exit status.
        namespace.kubectl(*inside, "(sleep 0.1 &) ; sleep 1")
        states = namespace.kubectl(*inside, "cat /proc/[0-9]*/stat")
        assert not re.search(r"\) Z ", states), "no zombie is left"


def test_deletion_needs_no_operator(namespace: Namespace, operator: str):
    namespace.deploy(demo_spec())
    namespace.wait_ready()
    scale(namespace.cluster, operator, 0)
    try:
        assert len(namespace.ask("demo", [BODY])) == 1, "serving needs no operator"
        namespace.kubectl("delete", "orca", "demo", "--timeout=30s")
        assert eventually(lambda: gone_but_pods(namespace), 60), namespace.children()
        assert eventually(lambda: namespace.children() == [], POD_SECONDS), namespace.children()
    finally:
        scale(namespace.cluster, operator, 1)


def test_two_of_the_same_name_in_two_namespaces(namespace: Namespace, cluster: Kubernetes):
    with cluster.namespace("other") as other:
        namespace.deploy(demo_spec())
        other.deploy(demo_spec(model={"uri": "file:///models/demo", "name": "theirs"}))
        namespace.wait_ready()
        other.wait_ready()
        assert namespace.ask("demo", [BODY])[0]["model"] == "demo"
        assert other.ask("demo", [BODY])[0]["model"] == "theirs"
        kept = {pod["metadata"]["uid"] for pod in namespace.pods()}
        other.kubectl("delete", "orca", "demo")
        assert eventually(lambda: gone_but_pods(other), 60), other.children()
        assert {pod["metadata"]["uid"] for pod in namespace.pods()} == kept
        assert namespace.condition()["status"] == "True"


def test_what_belongs_to_somebody_else_is_left_alone(namespace: Namespace):
    namespace.kubectl("create", "service", "clusterip", "demo", "--tcp=80:80")
    theirs = namespace.get("service", "demo")["spec"]
    namespace.deploy(demo_spec())
    assert "a Service named demo exists" in namespace.wait_reason("InvalidSpec", 30)["message"]
    assert namespace.get("service", "demo")["spec"] == theirs


def test_the_operator_repairs_what_somebody_changed(namespace: Namespace):
    namespace.deploy(demo_spec())
    namespace.wait_ready()
    namespace.kubectl("delete", "service", "demo")
    assert eventually(lambda: "Service/demo" in namespace.children(), 30)
    namespace.kubectl("patch", "service", "demo", "--type=merge", "-p", '{"spec":{"selector":{"a":"b"}}}')

    def repaired() -> bool:
        selector = namespace.get("service", "demo")["spec"]["selector"]
        return selector.get("orca-serving.io/component") == "master"

    assert eventually(repaired, 30)


def test_a_namespaced_operator_reads_only_its_namespace(cluster: Kubernetes, operator: str):
    """With the chart's default Role: an OrcaDeployment of its own namespace is served, its neighbour's rights end."""
    scale(cluster, operator, 0)  # the one with all namespaces must not help
    try:
        with cluster.namespace("own") as own, cluster.namespace("foreign") as foreign:
            helm(
                "install", "orca", str(ROOT / "charts" / "orca"), "--namespace", own.name,
                "--set", "crds.install=false", *images(), "--wait", "--timeout", "120s",
            )  # fmt: skip
            own.deploy(demo_spec())
            foreign.deploy(demo_spec())
            own.wait_ready()
            account = f"system:serviceaccount:{own.name}:orca"
            for verb, kind in (
                ("list", "orcadeployments"),
                ("get", "secrets"),
                ("list", "pods"),
                ("create", "services"),
            ):
                ask = ("auth", "can-i", verb, kind, "--as", account)
                assert own.kubectl(*ask, check=False).strip() == "yes"
                assert foreign.kubectl(*ask, check=False).strip().startswith("no")
            assert own.kubectl("auth", "can-i", "list", "secrets", "--as", account, check=False).startswith("no")
            assert foreign.get("orca", "demo").get("status") is None
            assert foreign.children() == []
            test = helm("test", "orca", "--namespace", own.name)
            assert "Succeeded" in test.stdout
            helm("uninstall", "orca", "--namespace", own.name)
    finally:
        scale(cluster, operator, 1)


@pytest.mark.long
def test_an_operator_that_is_killed_at_any_point_changes_nothing(namespace: Namespace, operator: str):
    """A local operator is killed after 0.8, 1.0 … s of its first passes; what comes out is as if it never had been."""
    scale(namespace.cluster, operator, 0)
    command = [sys.executable, "-m", "orca_master.cli", "operator", "--namespace", namespace.name]
    for part in ("master", "worker"):
        image = os.environ.get(f"{part.upper()}_IMAGE", f"localhost/orca-{part}:dev")
        command.append(f"--{part}-image={image}")
    try:
        namespace.deploy(demo_spec())
        for tenths in range(8, 26, 2):
            running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            time.sleep(tenths / 10)
            running.kill()
            running.wait()
    finally:
        scale(namespace.cluster, operator, 1)
    namespace.wait_ready()
    assert sorted(child.partition("/")[0] for child in namespace.children()).count("StatefulSet") == 1
    before = snapshot(namespace)
    assert len(before) >= 9
    namespace.cluster.kubectl("-n", operator, "rollout", "restart", "deployment/orca")
    namespace.cluster.kubectl("-n", operator, "rollout", "status", "deployment/orca", "--timeout=150s")
    time.sleep(8)  # its first passes
    assert snapshot(namespace) == before


def snapshot(namespace: Namespace) -> dict[str, str]:
    """Of every child and of the OrcaDeployment what changes when somebody writes it or restarts it.

    The status of a workload also moves when Kubernetes looks at its pods, so its generation stands for it.
    """
    kinds = "pods,deployments,statefulsets,services,configmaps,secrets,serviceaccounts,networkpolicies,orca"
    found = {}
    for item in namespace.items(kinds):
        if "orca-serving.io/deployment" in item["metadata"].get("labels", {}) or item["kind"] == "OrcaDeployment":
            metadata = item["metadata"]
            mark = metadata["resourceVersion"]
            if item["kind"] == "Pod":
                statuses = item["status"]["containerStatuses"]
                mark = f"{metadata['uid']} {[status['restartCount'] for status in statuses]}"
            elif item["kind"] in ("Deployment", "StatefulSet"):
                mark = f"{metadata['uid']} {metadata['generation']}"
            found[f"{item['kind']}/{metadata['name']}"] = mark
    return found


def test_at_rest_nothing_is_written(namespace: Namespace, operator: str):
    """Thirty passes of an idle operator, as it counts them: the API server counts no mutating request of its own."""
    deployments = [f"idle-{index}" for index in range(30)]
    for name in deployments:
        namespace.deploy(demo_spec(suspend=True), name)
    for name in deployments:
        namespace.wait_reason("Suspended", 60, name)
    # Other tests' namespaces are still being deleted, and the server does not say whose requests it counts.
    gone = ("get", "namespaces", "--field-selector", "status.phase=Terminating", "-o", "name")
    assert eventually(lambda: not namespace.cluster.kubectl(*gone).strip(), 200), "the cluster comes to rest"
    assert eventually(lambda: unchanged(lambda: mutations(namespace.cluster), 10), 60), "the cluster comes to rest"
    versions, said = snapshot(namespace), operator_events(namespace.cluster)
    assert len(said) >= len(deployments)
    before, passed = mutations(namespace.cluster), passes(namespace.cluster, operator)
    assert eventually(lambda: passes(namespace.cluster, operator) >= passed + 30, 200), "each deployment every 20 s"
    assert mutations(namespace.cluster) == before
    assert snapshot(namespace) == versions
    assert operator_events(namespace.cluster) == said


def passes(cluster: Kubernetes, operator: str) -> float:
    """Return the number of the operator's passes, from the metrics of its only pod."""
    listed = cluster.kubectl("-n", operator, "get", "pods", "-l", "app.kubernetes.io/name=orca-operator", "-o", "name")
    (pod,) = listed.split()
    text = cluster.kubectl(
        "get", "--raw", f"/api/v1/namespaces/{operator}/pods/{pod.removeprefix('pod/')}:8081/proxy/metrics"
    )
    return operator_metrics.read(text).passes


def unchanged(read: Callable[[], dict[str, int]], seconds: float) -> bool:
    before = read()
    time.sleep(seconds)
    return read() == before


def operator_events(cluster: Kubernetes) -> dict[str, str]:
    """Versions of the events that the operator wrote; kubelets write theirs at any time."""
    listed = json.loads(cluster.kubectl("get", "events", "--all-namespaces", "-o", "json"))["items"]
    return {
        event["metadata"]["uid"]: event["metadata"]["resourceVersion"]
        for event in listed
        if event["source"].get("component") == FIELD_MANAGER
    }


def mutations(cluster: Kubernetes) -> dict[str, int]:
    """Mutating requests so far, by resource, for the resources that the operator writes; its events are told apart."""
    written = ("orcadeployments", "services", "configmaps", "serviceaccounts", "deployments", "statefulsets",
               "controllerrevisions", "networkpolicies", "secrets")  # fmt: skip
    counts: dict[str, int] = {}
    for line in cluster.kubectl("get", "--raw", "/metrics").splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if labels["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE") and labels["resource"] in written:
            place = labels["resource"]
            counts[place] = counts.get(place, 0) + int(float(line.rpartition(" ")[2]))
    return counts


def scale(cluster: Kubernetes, operator: str, replicas: int) -> None:
    """Stop or start the operator, and wait for it."""
    cluster.kubectl("-n", operator, "scale", "deployment/orca", f"--replicas={replicas}")
    if replicas:
        cluster.kubectl("-n", operator, "rollout", "status", "deployment/orca", "--timeout=150s")
    else:
        gone = ("-n", operator, "get", "pods", "-l", "app.kubernetes.io/name=orca-operator", "-o", "name")
        assert eventually(lambda: not cluster.kubectl(*gone).strip(), POD_SECONDS)


@pytest.mark.long
def test_a_deleted_admin_secret_locks_nobody_out(namespace: Namespace, operator: str):
    """The restarted operator makes a new token, which the master reads as soon as the kubelet brings it."""
    namespace.deploy(demo_spec())
    namespace.wait_ready()
    before = {pod["metadata"]["uid"] for pod in namespace.pods()}
    namespace.kubectl("delete", "secret", "demo-admin")
    scale(namespace.cluster, operator, 0)
    scale(namespace.cluster, operator, 1)
    patch = {"spec": {"scheduler": {"maxBatchSize": 7}}}
    namespace.kubectl("patch", "orca", "demo", "--type=merge", "-p", json.dumps(patch))
    generation = namespace.get("orca", "demo")["metadata"]["generation"]

    def speaks_with_the_master() -> bool:
        conditions = [namespace.condition(kind) for kind in ("Ready", "FullyApplied")]  # {} before the edit is seen
        applied = namespace.get("orca", "demo")["status"].get("scheduler", {}).get("maxBatchSize") == 7
        return applied and all(
            each.get("status") == "True" and each["observedGeneration"] == generation for each in conditions
        )

    assert eventually(speaks_with_the_master, 240), namespace.condition()
    assert namespace.ask("demo", [BODY])[0]["choices"]
    assert {pod["metadata"]["uid"] for pod in namespace.pods()} == before


KILL_AFTER = 50
STREAM_AND_KILL = """
import json, os, pathlib, sys, urllib.request
body = json.dumps(json.loads(sys.argv[1])).encode()
request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", body, {"Content-Type": "application/json"})
events = 0
for line in urllib.request.urlopen(request, timeout=60):
    if line.startswith(b"data: {"):
        events += 1
        if events == int(sys.argv[2]):
            print(json.loads(line[6:])["id"], flush=True)
            for process in pathlib.Path("/proc").glob("[0-9]*"):
                command = (process / "cmdline").read_bytes().split(b"\\0")
                if b"master" in command and b"--journal" in command and b"dumb-init" not in command[0]:
                    os.kill(int(process.name), 9)
"""
"""Program for the master's container: reads a stream; at an event prints the request's id and kills the master."""


def test_a_killed_master_finishes_what_it_had_accepted(namespace: Namespace):
    """The container restarts in its pod, whose journal is an emptyDir; the workers are the same processes."""
    namespace.deploy(demo_spec(model={"uri": "file:///models/demo", "dtype": "float32"}))
    namespace.wait_ready()
    body = {**BODY, "max_tokens": 600, "temperature": 0.9, "seed": 4, "ignore_eos": True}
    (undisturbed,) = namespace.ask("demo", [body])
    master = next(pod["metadata"]["name"] for pod in namespace.pods() if "-master-" in pod["metadata"]["name"])
    program = ("exec", master, "--", "python3", "-c", STREAM_AND_KILL, json.dumps({**body, "stream": True}))
    request_id = namespace.kubectl(*program, str(KILL_AFTER), check=False).splitlines()[0]
    assert request_id.startswith("cmpl-")

    def resumed() -> dict:
        url = f"http://127.0.0.1:8000/v1/requests/{request_id}"
        reader = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=10).read().decode())"
        printed = namespace.kubectl("exec", master, "--", "python3", "-c", reader, check=False)
        return json.loads(printed) if printed.startswith("{") else {}

    assert eventually(lambda: resumed().get("status") == "completed", 90), resumed()
    assert resumed()["response"]["choices"] == undisturbed["choices"]
    restarts = {
        pod["metadata"]["name"]: sum(status["restartCount"] for status in pod["status"]["containerStatuses"])
        for pod in namespace.pods()
    }
    assert restarts == {name: int(name == master) for name in restarts}
