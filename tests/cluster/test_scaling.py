"""`kubectl scale` under streams through the Service, while the operator is killed: none fails, none differs."""

from __future__ import annotations

import re
from collections.abc import Callable

from support.kubernetes import Kubernetes, Namespace, demo_spec, eventually
from support.pod_streams import streams_go_on

SECONDS = 120
MOST = 3
"""Pipelines. Streams move to those that stay when others leave."""


def test_scaling_while_the_operator_is_killed_loses_nothing(namespace: Namespace, operator: str):
    """1, 3 and again 1 pipelines; the operator ends by force right after each edit, and once more while it acts."""
    namespace.deploy(demo_spec(model={"uri": "file:///models/demo", "dtype": "float32"}))
    namespace.wait_ready()
    master, (first,) = namespace.master(), namespace.workers()
    with streams_go_on(namespace) as numbers:
        scale(namespace, MOST)
        kill(namespace.cluster, operator)
        assert eventually(lambda: len(namespace.workers()) > 1, SECONDS)
        kill(namespace.cluster, operator)
        assert eventually(serving(namespace, MOST), SECONDS), namespace.get("orca", "demo")["status"]
        assert eventually(lambda: len(computing(namespace)) == MOST, SECONDS), "streams run on every pipeline"
        scale(namespace, 1)
        kill(namespace.cluster, operator)
        assert eventually(lambda: len(namespace.workers()) < MOST, SECONDS)
        kill(namespace.cluster, operator)
        assert eventually(serving(namespace, 1), SECONDS), namespace.get("orca", "demo")["status"]
        assert eventually(lambda: namespace.workers() == [first], SECONDS)
    assert min(numbers) > 1
    assert namespace.master() == master, "a scaling restarts no pod"
    lost = [line for line in namespace.kubectl("logs", master).splitlines() if " is lost: " in line]
    print(f"{sum(numbers)} streams, {len(lost)} pipelines were lost", *lost, sep="\n")


def scale(namespace: Namespace, replicas: int) -> None:
    namespace.kubectl("scale", "orca/demo", f"--replicas={replicas}")


def kill(cluster: Kubernetes, operator: str) -> None:
    """End the operator's pods by force; its Deployment starts a new one."""
    cluster.kubectl("-n", operator, "delete", "pods", "--all", "--force", "--grace-period=0")


def computing(namespace: Namespace) -> set[str]:
    """Return the pipelines that have computed iterations."""
    series = re.findall(
        r'^orca:stage_busy_seconds_total{.*pipeline="([^"]+)".*} (\S+)$', namespace.metrics("demo"), re.M
    )
    return {pipeline for pipeline, seconds in series if float(seconds) > 0}


def serving(namespace: Namespace, replicas: int) -> Callable[[], bool]:
    """Return whether exactly `replicas` pipelines serve, as the status of the latest generation says."""

    def holds() -> bool:
        resource = namespace.get("orca", "demo")
        status = resource["status"]
        phases = [pipeline["phase"] for pipeline in status["pipelines"]]
        current = status["observedGeneration"] == resource["metadata"]["generation"]
        return current and phases == ["Serving"] * replicas

    return holds
