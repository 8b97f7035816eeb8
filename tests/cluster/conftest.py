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


@pytest.fixture(scope="session")
def cluster() -> Kubernetes:
    """The cluster of KUBECONFIG, with the CRD that it can take."""
    assert os.environ.get("KUBECONFIG"), "KUBECONFIG names the cluster to test on"
    found = Kubernetes()
    crd = "orcadeployment.yaml" if found.has_cel else "orcadeployment-legacy.yaml"
    found.kubectl("apply", "--server-side", "-f", str(ROOT / "charts" / "orca" / "files" / crd))
    return found


@pytest.fixture(scope="session")
def operator(cluster: Kubernetes) -> Iterator[str]:
    """The operator, for all namespaces; yields the namespace it runs in."""
    cluster.kubectl("create", "namespace", RELEASE_NAMESPACE, check=False)
    helm(
        "upgrade", "--install", "orca", str(ROOT / "charts" / "orca"), "--namespace", RELEASE_NAMESPACE,
        "--set", "clusterWide=true,crds.install=false", *images(), "--wait", "--timeout", "120s",
    )  # fmt: skip
    yield RELEASE_NAMESPACE
    helm("uninstall", "orca", "--namespace", RELEASE_NAMESPACE)


@pytest.fixture
def namespace(cluster: Kubernetes, operator: str, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A fresh namespace under the operator's eye."""
    with cluster.namespace(request.node.name) as made:
        yield made
