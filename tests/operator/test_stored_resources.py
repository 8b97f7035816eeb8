"""OrcaDeployments that were stored under the CRD before pod overrides had types: an upgrade restarts no pod.

stored_resources.yaml is frozen: what the API server had stored, and the revisions that the operator had computed.
"""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from orca_operator.cluster import ClusterError
from orca_operator.conditions import find_condition
from orca_operator.crd import crd
from orca_operator.master_client import MasterClient
from orca_operator.metrics import Metrics
from orca_operator.names import KIND
from orca_operator.reconcile import Reconciler
from orca_operator.revision import revision_hash
from orca_operator.validation import InvalidSpecError, parse
from support.crdcheck import judge
from support.orcadeployments import IMAGES

STORED = list(yaml.safe_load_all((Path(__file__).parent / "stored_resources.yaml").read_text()))
VALID = [entry for entry in STORED if "refused" not in entry]
REFUSED = [entry for entry in STORED if "refused" in entry]


def identity(entry: dict[str, Any]) -> str:
    return entry["resource"]["metadata"]["name"]


@pytest.mark.parametrize("entry", VALID, ids=identity)
def test_the_revision_is_the_same_so_that_no_pod_restarts(entry):
    assert revision_hash(parse(identity(entry), entry["resource"]["spec"])) == entry["revision"]


@pytest.mark.parametrize("entry", REFUSED, ids=identity)
def test_what_is_invalid_since_is_named(entry):
    with pytest.raises(InvalidSpecError) as refusal:
        parse(identity(entry), entry["resource"]["spec"])
    assert str(refusal.value).startswith((f"{entry['refused']} ", f"{entry['refused']}: "))


def test_a_current_server_reads_them_unchanged_and_refuses_the_same():
    verdicts = judge(crd(), [entry["resource"] for entry in STORED])[1:]
    for entry, verdict in zip(STORED, verdicts, strict=True):
        assert verdict.accepted == ("refused" not in entry), (identity(entry), verdict.errors)
        assert verdict.accepted or any(entry["refused"] in error for error in verdict.errors)
        if verdict.accepted:
            assert verdict.defaulted["spec"] == entry["resource"]["spec"]


def by_name(name: str) -> dict[str, Any]:
    return copy.deepcopy(next(entry["resource"] for entry in STORED if identity(entry) == name))


def test_they_can_be_edited():
    old, new = by_name("everything"), by_name("everything")
    new["spec"]["replicas"] = 2
    assert judge(crd(), [new], old)[1].accepted
    old, new = by_name("env-twice"), by_name("env-twice")
    new["spec"]["worker"]["env"].pop()
    assert judge(crd(), [new], old)[1].accepted


class FakeCluster:
    """An API server with one OrcaDeployment and no children; notes every write."""

    def __init__(self, resource: dict[str, Any], refuses_status: bool) -> None:
        metadata = {**resource["metadata"], "uid": "u", "generation": 1, "resourceVersion": "1"}
        self.resource = {**resource, "metadata": metadata}
        self.refuses_status = refuses_status
        self.events: list[dict[str, Any]] = []
        self.statuses: list[dict[str, Any]] = []

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return self.resource if kind == KIND else None

    def children(self, kind: str, namespace: str, deployment: str) -> list[dict[str, Any]]:
        return []

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        assert manifest["kind"] == "Event", manifest
        self.events.append(manifest)
        return manifest

    def patch_status(self, namespace: str, name: str, status: dict[str, Any], version: str) -> dict[str, Any]:
        self.statuses.append(status)
        if self.refuses_status:
            raise ClusterError(422, "spec.worker.env[1]: Duplicate value")
        return self.resource


async def passes(cluster: FakeCluster, number: int) -> None:
    """Run passes over the deployment until that many statuses were written, or refused."""
    reconciler = Reconciler(cluster, IMAGES, MasterClient(), Metrics())  # type: ignore[arg-type]
    metadata = cluster.resource["metadata"]
    try:
        reconciler.enqueue((metadata["namespace"], metadata["name"]))
        async with asyncio.timeout(60):
            while len(cluster.statuses) < number or not cluster.events:
                await asyncio.sleep(0.05)
    finally:
        await reconciler.close()


def test_an_invalid_one_gets_a_condition_and_its_pods_are_left_alone():
    cluster = FakeCluster(by_name("env-twice"), refuses_status=False)
    asyncio.run(passes(cluster, 1))
    ready = find_condition(cluster.statuses[0], "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert ready["message"].startswith("spec.worker.env[1]: ")
    assert [event["reason"] for event in cluster.events] == ["InvalidSpec"]


def test_a_server_that_refuses_its_status_gets_one_event():
    """Servers before 1.30 check the whole object when the status is written."""
    cluster = FakeCluster(by_name("env-twice"), refuses_status=True)
    asyncio.run(passes(cluster, 2))
    assert [event["reason"] for event in cluster.events] == ["InvalidSpec"]
    assert cluster.events[0]["message"].startswith("spec.worker.env[1]: ")
