"""An HPA scales an OrcaDeployment by the master's queue: load adds pipelines, idleness removes them, within the bounds.

The custom metrics come from a stand-in for an adapter (support/metrics_api.py), which asks the master. Servers before
1.23 do not serve autoscaling/v2: there the test creates the same HPA as v2beta2.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from orca_operator.scaling import wanted_autoscaler
from support import metrics_api
from support.certificates import sign
from support.kubernetes import MASTER_IMAGE, Namespace, demo_spec, eventually
from support.orcadeployments import context

API_SERVICE = "v1beta1.custom.metrics.k8s.io"
MIN, MAX = 1, 2
SCALING_SECONDS = 180
"""Until an HPA acts: it reads metrics every 15 s, and discovers a new metrics API within 30 s more."""
STEADY_SECONDS = 600
"""Of steady load."""
READER = """
import ssl, sys, urllib.request
trusted = ssl.create_default_context(cafile="/tls/ca.crt")
print(urllib.request.urlopen(sys.argv[1], timeout=10, context=trusted).read().decode())
"""
BODY = {"prompt": [1, 2, 3], "max_tokens": 100, "temperature": 0, "ignore_eos": True}


@contextlib.contextmanager
def custom_metrics(namespace: Namespace) -> Iterator[None]:
    """Serve custom.metrics.k8s.io from a pod of the namespace; unregister it first: without it, no namespace ends."""
    host = f"metrics-api.{namespace.name}.svc"
    authority = sign()
    signed = sign(host, issuer=authority)
    files = {"ca.crt": authority.pem, "tls.crt": signed.pem, "tls.key": signed.key_pem}
    labels = {"app": "metrics-api"}
    container = {
        "name": "metrics-api",
        "image": MASTER_IMAGE,
        "command": ["python3", "/program/metrics_api.py", "/tls"],
        "readinessProbe": {"tcpSocket": {"port": metrics_api.PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}, {"name": "program", "mountPath": "/program"}],
    }
    volumes = [
        {"name": "tls", "secret": {"secretName": "metrics-api"}},
        {"name": "program", "configMap": {"name": "metrics-api"}},
    ]
    with open(metrics_api.__file__, encoding="utf-8") as program:
        text = program.read()
    for kind, body in (
        ("ConfigMap", {"data": {"metrics_api.py": text}}),
        ("Secret", {"stringData": {name: pem.decode() for name, pem in files.items()}}),
        ("Service", {"spec": {"selector": labels, "ports": [{"port": 443, "targetPort": metrics_api.PORT}]}}),
        ("Pod", {"spec": {"terminationGracePeriodSeconds": 0, "containers": [container], "volumes": volumes}}),
    ):
        namespace.apply(
            {"apiVersion": "v1", "kind": kind, "metadata": {"name": "metrics-api", "labels": labels}} | body
        )
    namespace.kubectl("wait", "--for=condition=Ready", "pod/metrics-api", "--timeout=60s")
    # An API server that connects before the node knows the Service's address may reach another server, behind the
    # default route. It checks no certificate here, keeps the connection, and gets that server's 404 from then on.
    asked = ("exec", "metrics-api", "--", "python3", "-c", READER, f"https://{host}{metrics_api.ROOT}")
    assert eventually(lambda: "APIResourceList" in namespace.kubectl(*asked, check=False), 60), asked
    spec = {
        "group": "custom.metrics.k8s.io",
        "version": "v1beta1",
        "service": {"name": "metrics-api", "namespace": namespace.name, "port": 443},
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    registration = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": API_SERVICE}}
    try:
        namespace.apply({**registration, "spec": spec})
        namespace.kubectl("wait", "--for=condition=Available", f"apiservice/{API_SERVICE}", "--timeout=60s")
        yield
    finally:
        namespace.kubectl("delete", "apiservice", API_SERVICE, "--ignore-not-found")


def autoscale(namespace: Namespace, **autoscaling: Any) -> None:
    """Deploy with autoscaling, which leaves `replicas` as it is."""
    spec = demo_spec(
        scheduler={"maxBatchSize": 1, "maxExpectedWaitSeconds": 3600},
        autoscaling={"maxReplicas": MAX, "targetQueueDepth": 2, "scaleDownDelaySeconds": 0, **autoscaling},
    )
    namespace.deploy(spec)
    if not serves_v2(namespace):
        (manifest,) = wanted_autoscaler(context(spec, "demo", namespace.name))
        del manifest["metadata"]["ownerReferences"]
        namespace.apply(manifest | {"apiVersion": "autoscaling/v2beta2"})


def serves_v2(namespace: Namespace) -> bool:
    """Whether the operator can create the HPA itself."""
    return "autoscaling/v2" in namespace.kubectl("api-versions").split()


def replicas(namespace: Namespace) -> int:
    return int(namespace.get("orca", "demo")["spec"]["replicas"])


def test_load_adds_pipelines_and_idleness_removes_them(namespace: Namespace):
    if "not found" not in namespace.kubectl("get", "apiservice", API_SERVICE, check=False):
        pytest.skip("the cluster has an adapter for custom metrics of its own")
    seen = []

    def scaled_to(number: int) -> bool:
        seen.append(replicas(namespace))
        return seen[-1] == number

    with custom_metrics(namespace):
        autoscale(namespace)
        namespace.wait_ready()
        assert replicas(namespace) == MIN
        namespace.ask("demo", [{**BODY, "max_tokens": 1}])  # the client is there
        with under_load(namespace) as loading:
            grown = eventually(lambda: scaled_to(MAX) or loading.done(), SCALING_SECONDS)
            assert grown, (seen, described(namespace))
            # The queue asks for more than MAX: the HPA says so, and stays there.
            assert eventually(lambda: limited(namespace), 60), described(namespace)
            assert eventually(lambda: len(namespace.workers()) == MAX, 60)
        namespace.wait_ready()
        assert eventually(lambda: scaled_to(MIN), SCALING_SECONDS), (seen, described(namespace))
        assert {MIN} <= set(seen) <= {MIN, MAX}
        namespace.wait_ready()

        autoscale(namespace, minReplicas=MAX)
        assert eventually(lambda: scaled_to(MAX), SCALING_SECONDS), "the minimum holds without load"
        namespace.wait_ready()
        scaling = namespace.condition("ScalingReady")
        if serves_v2(namespace):
            assert (scaling["status"], scaling["reason"]) == ("True", "Autoscaling"), scaling
        else:
            assert scaling["reason"] == "KindNotServed"
            assert "autoscaling/v2 HorizontalPodAutoscaler" in scaling["message"]


@pytest.mark.long
@pytest.mark.timeout(STEADY_SECONDS + 900)
def test_a_steady_load_does_not_flap(namespace: Namespace):
    """Batches of requests follow each other with short pauses, in which the queue is empty."""
    if "not found" not in namespace.kubectl("get", "apiservice", API_SERVICE, check=False):
        pytest.skip("the cluster has an adapter for custom metrics of its own")
    with custom_metrics(namespace):
        autoscale(namespace, scaleDownDelaySeconds=60)
        namespace.wait_ready()
        namespace.ask("demo", [{**BODY, "max_tokens": 1}])  # the client is there
        with under_load(namespace) as loading:
            assert eventually(lambda: replicas(namespace) == MAX, SCALING_SECONDS), described(namespace)
            assert numbers(namespace, STEADY_SECONDS) == {MAX}
            assert not loading.done()
        assert eventually(lambda: replicas(namespace) == MIN, SCALING_SECONDS), described(namespace)


def numbers(namespace: Namespace, seconds: float) -> set[int]:
    """Return the values that `spec.replicas` has during some time."""
    seen = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen.add(replicas(namespace))
        time.sleep(3)
    return seen


@contextlib.contextmanager
def under_load(namespace: Namespace) -> Iterator[Future[None]]:
    """Send requests during the block, more than MAX pipelines keep up with; yield the future of the sender."""
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            namespace.ask("demo", [BODY] * 64)

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        try:
            yield loading
        finally:
            stop.set()
        loading.result(280)


def limited(namespace: Namespace) -> bool:
    """Whether the HPA would like to exceed its maximum."""
    # `kubectl describe` cuts the annotation off in which autoscaling/v1 has the conditions.
    return "TooManyReplicas" in namespace.kubectl("get", "horizontalpodautoscaler", "demo", "-o", "json")


def described(namespace: Namespace) -> str:
    return namespace.kubectl("describe", "hpa", "demo")
