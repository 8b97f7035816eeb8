"""Events of an OrcaDeployment: when one is written, of which type, and that none holds a pass up."""

from __future__ import annotations

import pytest
from orca_operator.cluster import ClusterError
from orca_operator.events import LONGEST_NOTE, NORMAL, Announcer
from orca_operator.names import KIND

RESOURCE = {"metadata": {"name": "demo", "namespace": "default", "uid": "u"}}


class Server:
    """Keeps the Events, or refuses them."""

    def __init__(self, refusal: ClusterError | None = None) -> None:
        self.refusal = refusal
        self.events: list[dict] = []

    def create(self, manifest: dict) -> dict:
        if self.refusal is not None:
            raise self.refusal
        if self.get(manifest["kind"], "default", manifest["metadata"]["name"]) is not None:
            raise ClusterError(409, "events already exists")
        self.events.append(manifest)
        return manifest

    def get(self, kind: str, namespace: str, name: str) -> dict | None:
        assert (kind, namespace) == ("Event", "default")
        return next((event for event in self.events if event["metadata"]["name"] == name), None)

    def merge(self, kind: str, namespace: str, name: str, fields: dict) -> None:
        event = self.get(kind, namespace, name)
        assert event is not None
        event.update(fields)


def status(reason: str) -> dict:
    return {"conditions": [{"type": "Ready", "reason": reason, "message": f"because of {reason}"}]}


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ({}, "LoadingWeights", ["Normal"]),
        (status("LoadingWeights"), "Serving", ["Normal"]),
        (status("Serving"), "WorkerOOMKilled", ["Warning"]),
        (status("Serving"), "Serving", []),
    ],
)
def test_an_event_for_each_change_of_the_reason(before, after, kinds):
    server = Server()
    Announcer(server).announce_change(RESOURCE, status(after), before)  # type: ignore[arg-type]
    assert [event["type"] for event in server.events] == kinds
    for event in server.events:
        assert (event["reason"], event["message"]) == (after, f"because of {after}")
        assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"]) == (KIND, "u")
        assert event["metadata"]["namespace"] == "default"


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        ("Recording", "JournalOff", ["JournalOff"]),
        ("Recovering", "JournalOff", ["JournalOff"]),
        ("JournalOff", "JournalOff", []),
        ("JournalOff", "Recording", []),
        ("Recording", "NoJournal", []),
    ],
)
def test_an_event_when_the_journal_can_no_longer_be_written(before, after, reasons):
    server = Server()
    with_journal = [
        {
            "conditions": [
                *status("Serving")["conditions"],
                {"type": "JournalReady", "reason": reason, "message": "full"},
            ]
        }
        for reason in (before, after)
    ]
    Announcer(server).announce_change(RESOURCE, with_journal[1], with_journal[0])  # type: ignore[arg-type]
    assert [event["reason"] for event in server.events] == reasons
    assert {(event["type"], event["message"]) for event in server.events} <= {("Warning", "full")}


def test_events_have_names_of_their_own_and_short_messages():
    server = Server()
    for first in "ab":
        Announcer(server).announce(RESOURCE, "Warning", "KindNotServed", first + "x" * 5000)  # type: ignore[arg-type]
    assert len({event["metadata"]["name"] for event in server.events}) == 2
    assert {len(event["message"]) for event in server.events} == {LONGEST_NOTE}


def test_a_repeated_reason_of_ready_counts_its_event_up():
    """Also after a restart of the operator; another OrcaDeployment of the same name has Events of its own."""
    server = Server()
    loading, serving = status("LoadingWeights"), status("Serving")
    for generation in range(10):
        loading["conditions"][0]["message"] = f"0 of {generation} workers"
        Announcer(server).announce_change(RESOURCE, loading, serving)  # type: ignore[arg-type]
        Announcer(server).announce_change(RESOURCE, serving, loading)  # type: ignore[arg-type]
    assert [(event["reason"], event["count"]) for event in server.events] == [("LoadingWeights", 10), ("Serving", 10)]
    first = server.events[0]
    assert first["message"] == "0 of 9 workers"
    assert first["firstTimestamp"] <= first["lastTimestamp"]
    again = {"metadata": {**RESOURCE["metadata"], "uid": "another"}}
    Announcer(server).announce_change(again, serving, loading)  # type: ignore[arg-type]
    assert [event["count"] for event in server.events] == [10, 10, 1]


def test_a_repeated_message_counts_its_event_up():
    server = Server()
    for message in ("pod a", "pod b", "pod a"):
        Announcer(server).announce(RESOURCE, "Warning", "PodForceDeleted", message)  # type: ignore[arg-type]
    assert [(event["message"], event["count"]) for event in server.events] == [("pod a", 2), ("pod b", 1)]


def test_an_event_that_expires_meanwhile_is_a_line_in_the_log(caplog):
    class Forgetful(Server):
        def get(self, kind: str, namespace: str, name: str) -> dict | None:
            return None

        def create(self, manifest: dict) -> dict:
            raise ClusterError(409, "events already exists")

        def merge(self, kind: str, namespace: str, name: str, fields: dict) -> None:
            assert fields["count"] == 1
            raise ClusterError(404, "not found")

    Announcer(Forgetful()).announce(RESOURCE, "Normal", "Serving", "m")  # type: ignore[arg-type]
    assert "default/demo: cannot write Event Serving: not found" in caplog.text


def test_an_event_that_is_refused_is_a_line_in_the_log(caplog):
    Announcer(Server(ClusterError(403, "no events here"))).announce(RESOURCE, "Normal", "Serving", "m")  # type: ignore[arg-type]
    assert "default/demo: cannot write Event Serving: no events here" in caplog.text


def test_normal_reasons_ask_nobody_to_act():
    assert {reason.value for reason in NORMAL} == {
        "Serving", "Suspended", "ScaledToZero", "ModelDownloading", "RollingUpdate", "LoadingWeights",
    }  # fmt: skip
