"""Tests on a real cluster: `make test-cluster KUBECONFIG=…`, one after another, with images that are on its nodes.

The operator is installed by helm, once. Every test has a namespace of its own, deleted at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kubernetes import Kubernetes, Namespace, helm, images

ROOT = Path(__file__).parents[2]
RELEASE_NAMESPACE = "orca-system"


TEST_SECONDS = 900
"""A test waits for pods; each wait has a bound of its own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """More time than tests have elsewhere; a test may have a bound of its own."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def cluster() -> Kubernetes:
    """Return the cluster of KUBECONFIG."""
    assert os.environ.get("KUBECONFIG"), "KUBECONFIG names the cluster to test on"
    return Kubernetes()


@pytest.fixture(scope="session")
def operator(cluster: Kubernetes) -> Iterator[str]:
    """Run the operator, for all namespaces; yield the namespace it runs in.

    The chart brings the CRD, in the form that this server takes, unless somebody else has put one there.
    """
    there = cluster.kubectl("get", "crd", "orcadeployments.orca-serving.io", "-o", "yaml", check=False)
    foreign = "kind: CustomResourceDefinition" in there and "meta.helm.sh/release-name: orca" not in there
    crds = {"crds.install": not foreign, "crds.celRules": cluster.has_cel}
    switches = ",".join(f"{name}={str(value).lower()}" for name, value in crds.items())
    helm(
        "upgrade", "--install", "orca", str(ROOT / "charts" / "orca"), "--create-namespace",
        "--namespace", RELEASE_NAMESPACE, "--set", f"clusterWide=true,{switches}", *images(),
        "--wait", "--timeout", "120s",
    )  # fmt: skip
    yield RELEASE_NAMESPACE
    helm("uninstall", "orca", "--namespace", RELEASE_NAMESPACE)


@pytest.fixture
def namespace(cluster: Kubernetes, operator: str, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """Yield a fresh namespace under the operator's eye."""
    with cluster.namespace(request.node.name) as made:
        yield made
