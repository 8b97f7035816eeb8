"""What the deletion of pods reports; test_execute.py has the rest of the pass."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from orca_operator.actions import ForceDelete, Replace
from orca_operator.cluster import ClusterError
from orca_operator.pod_deletions import Deleted, PodDeletions
from support.orcadeployments import MINIMAL, context

OWNER = context(MINIMAL)
PODS = tuple({"kind": "Pod", "metadata": {"name": name, "uid": name}} for name in "abc")


class Server:
    """A cluster whose deletions of the pods in `refused` fail, and which has lost the pods in `gone`."""

    def __init__(self, refused: str = "", gone: str = "") -> None:
        self.refused, self.gone = refused, gone
        self.deleted: list[str] = []
        self.events: list[str] = []

    def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        assert (kind, namespace, uid) == ("Pod", OWNER.namespace, name)
        if name in self.refused:
            raise ClusterError(500, "failed calling webhook")
        self.deleted.append(name)

    def force_delete(self, namespace: str, name: str, uid: str) -> bool:
        self.delete("Pod", namespace, name, uid)
        return name not in self.gone

    def create(self, event: dict[str, Any]) -> None:
        self.events.append(event["reason"])


def test_all_pods_of_a_pipeline_are_deleted_whichever_deletion_fails():
    server = Server(refused="b")
    deleted = PodDeletions(server).replace(Replace("abc-0", PODS, datetime(2026, 1, 1, tzinfo=UTC)), OWNER)  # type: ignore[arg-type]
    assert deleted == Deleted(2, ("b of pipeline abc-0: failed calling webhook",))
    assert (server.deleted, server.events) == (["a", "c"], ["PipelineReplaced"])


def test_a_replacement_that_deletes_nothing_has_no_event():
    server = Server(refused="abc")
    assert PodDeletions(server).replace(Replace("abc-0", PODS, datetime(2026, 1, 1, tzinfo=UTC)), OWNER).count == 0  # type: ignore[arg-type]
    assert server.events == []


def test_a_pod_of_a_lost_node_is_deleted_by_force():
    for server, expected, events in (
        (Server(), Deleted(1), ["PodForceDeleted"]),
        (Server(gone="a"), Deleted(0), []),
        (Server(refused="a"), Deleted(0, ("a on the lost node n1: failed calling webhook",)), []),
    ):
        deletion = ForceDelete(PODS[0], "n1", datetime(2026, 1, 1, tzinfo=UTC))
        assert PodDeletions(server).force_delete(deletion, OWNER) == expected  # type: ignore[arg-type]
        assert server.events == events
