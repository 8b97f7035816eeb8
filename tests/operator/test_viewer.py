"""The view of a pass has what Events and nodes tell, and a failed read of them ends no pass."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from orca_contract.reasons import Reason
from orca_operator.cluster import ClusterError
from orca_operator.lost_nodes import UNREACHABLE
from orca_operator.observe import Observed
from orca_operator.viewer import Viewer
from support.orcadeployments import NOW, context, pod

MOUNT = {"reason": "FailedMount", "message": "no Secret", "lastTimestamp": NOW.isoformat(), "metadata": {}}


class Server:
    def __init__(self, failure: ClusterError | None = None) -> None:
        self.failure = failure

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": NOW.isoformat()}
        taints = [{"key": UNREACHABLE, "effect": "NoExecute"}]
        return {"metadata": {"name": name}, "spec": {"taints": taints}, "status": {"conditions": [ready]}}

    def events(self, namespace: str, uid: str) -> list[dict[str, Any]]:
        if self.failure is not None:
            raise self.failure
        return [MOUNT]


@pytest.mark.parametrize(
    ("failure", "reasons"),
    [
        (None, [Reason.VOLUME_MOUNT_FAILED, Reason.NODE_LOST]),
        (ClusterError(500, "no"), [Reason.LOADING_WEIGHTS, Reason.LOADING_WEIGHTS]),
    ],
)
def test_a_view_has_what_no_watch_tells(failure, reasons):
    waits = [{"name": "worker", "image": "i", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    pods = [pod(context(), containerStatuses=waits), pod(context(), pipeline=1)]
    pods[0]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    pods[1]["spec"]["nodeName"] = "n1"
    viewer = Viewer(Server(failure))  # type: ignore[arg-type]
    seen = asyncio.run(viewer.view(Observed(tuple(pods)), "default", NOW))
    assert [seen.diagnoses[each["metadata"]["name"]].reason for each in pods] == reasons
    assert set(seen.nodes.lost) == ({"n1"} if failure is None else set())
