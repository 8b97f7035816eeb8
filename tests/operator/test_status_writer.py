"""`StatusWriter`: which statuses are patched, which Events follow, and what the API server's refusals lead to."""

from __future__ import annotations

from typing import Any

import pytest
from orca_operator import repairs, status_writer
from orca_operator.cluster import ClusterError
from orca_operator.status_writer import StatusWriter

RESOURCE = {"metadata": {"name": "demo", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"}}


class Server:
    """An API server that notes patches and Events, or refuses patches."""

    def __init__(self) -> None:
        self.refusal: ClusterError | None = None
        self.patches: list[dict[str, Any]] = []
        self.events: list[tuple[str, str]] = []
        self.resource: dict[str, Any] | None = RESOURCE

    def get(self, _kind: str, _namespace: str, _name: str) -> dict[str, Any] | None:
        return self.resource

    def patch_status(self, _namespace: str, _name: str, status: dict[str, Any], version: str) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal
        if self.resource is None or self.resource["metadata"]["resourceVersion"] != version:
            raise ClusterError(409, "the object has been modified")
        self.patches.append(status)
        return {**self.resource, "status": status}

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.events.append((manifest["reason"], manifest["message"]))
        return manifest


def status(reason: str, **fields: Any) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "reason": reason, "message": "words"}], **fields}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def writer(server) -> StatusWriter:
    return StatusWriter(server)  # type: ignore[arg-type]


def test_an_unchanged_status_is_not_written(server, writer):
    assert writer.write(RESOURCE, status("Serving"), status("Serving")) is RESOURCE
    assert (server.patches, server.events) == ([], [])


def test_a_changed_status_is_patched_and_returned_and_fields_that_are_gone_are_removed(server, writer):
    written = writer.write(RESOURCE, status("Serving"), status("Recovering", replicas=1))
    assert server.patches == [status("Serving") | {"replicas": None}]
    assert written == {**RESOURCE, "status": server.patches[0]}
    assert server.events == [("Serving", "words")]


def test_a_status_of_which_an_older_crd_drops_a_field_is_not_written_by_every_pass(server, writer, monkeypatch):
    desired, stored = status("Serving", new="field"), status("Serving")
    server.patch_status = lambda *_: server.patches.append(desired) or {**RESOURCE, "status": stored}
    written = writer.write(RESOURCE, desired, {})
    assert written["status"] == stored
    for _ in range(3):
        assert writer.write(written, desired, stored) is written
    assert server.patches == [desired]
    assert writer.write(written, status("Serving", new="value"), stored) is not written, "another status"
    writer.write(written, desired, stored)
    assert writer.write(written, desired, status("Serving", replicas=1)) is not written, "somebody has changed it"
    monkeypatch.setattr(status_writer, "REPEAT_SECONDS", -1.0)
    assert writer.write(written, desired, stored) is not written, "the CRD may be a newer one by now"


def test_restarts_that_an_older_crd_drops_cause_no_endless_writes(server, writer):
    """Without the stored counts the window of the restarts begins anew in every pass."""
    stored = status("Serving", pipelines=[{"id": "a-0"}])
    server.patch_status = lambda *_: server.patches.append("") or {**RESOURCE, "status": stored}
    for second in range(5):
        pipeline = {"id": "a-0", "restartedPods": [{"seen": 1}], "restartsSince": f"2026-01-01T12:00:0{second}Z"}
        writer.write(RESOURCE, status("Serving", pipelines=[pipeline]), stored)
    assert len(server.patches) == 1


def test_a_status_that_another_operator_keeps_changing_is_written_ever_less_often(server, writer, monkeypatch):
    """The other one knows no condition `Newer`, which begins anew each time. Another status is written at once."""
    now = [0.0]
    monkeypatch.setattr(repairs, "monotonic", lambda: now[0])
    theirs = status("Serving")
    for _ in range(720):
        newer = {"type": "Newer", "reason": "True", "message": "", "lastTransitionTime": str(now[0])}
        ours = {"conditions": [*theirs["conditions"], newer]}
        writer.write(RESOURCE, ours, theirs)
        now[0] += 5
    assert 10 <= len(server.patches) <= 15, "in an hour"
    assert writer.write(RESOURCE, {**ours, "replicas": 2}, theirs) is not RESOURCE


def test_a_deployment_that_is_gone_has_no_status(server, writer):
    server.refusal = ClusterError(404, "not found")
    assert writer.write(RESOURCE, status("Serving"), {}) is None
    assert server.events == []


def of_version(version: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {**RESOURCE["metadata"], "resourceVersion": version, **metadata}}


def test_a_status_is_written_also_if_the_deployment_was_edited_meanwhile(server, writer):
    server.resource = of_version("2", generation=2)
    written = writer.write(RESOURCE, status("Serving"), {})
    assert written == {**server.resource, "status": status("Serving")}
    assert server.events == [("Serving", "words")]


@pytest.mark.parametrize("successor", [of_version("2", uid="another"), None], ids=["of its name", "none"])
def test_a_successor_does_not_get_the_status_of_the_deployment_before_it(server, writer, successor):
    server.resource = successor
    assert writer.write(RESOURCE, status("Serving"), {}) is None
    assert (server.patches, server.events) == ([], [])


def test_edits_without_an_end_fail_the_pass(server, writer):
    edits, server.resource = iter(range(2, 9)), of_version("9")
    server.get = lambda *_: of_version(str(next(edits)))
    with pytest.raises(ClusterError, match="has been modified"):
        writer.write(RESOURCE, status("Serving"), {})
    assert next(edits) == 1 + status_writer.TRIES


def test_a_server_that_refuses_every_status_gets_one_event_per_generation(server, writer):
    server.refusal = ClusterError(422, "spec.replicas: Invalid value: -1")
    newer = {"metadata": {**RESOURCE["metadata"], "generation": 2}}
    for resource in (RESOURCE, RESOURCE, newer, newer):
        with pytest.raises(ClusterError, match="Invalid value"):
            writer.write(resource, status("InvalidSpec"), {})
    assert server.events == [("InvalidSpec", "words")] * 2


def test_a_kind_that_is_skipped_is_announced_once_until_it_is_served_again(server, writer):
    for kinds in (["PodMonitor"], ["PodMonitor"], [], ["PodMonitor"]):
        writer.announce_skipped(RESOURCE, kinds)
        assert writer.skipped == tuple(kinds)
    assert server.events == [("KindNotServed", "this cluster does not serve PodMonitor, which is skipped")] * 2
