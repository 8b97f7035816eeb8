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
        self.events.append(manifest)
        return manifest


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
    for _ in range(2):
        Announcer(server).announce(RESOURCE, "Warning", "KindNotServed", "x" * 5000)  # type: ignore[arg-type]
    assert len({event["metadata"]["name"] for event in server.events}) == 2
    assert {len(event["message"]) for event in server.events} == {LONGEST_NOTE}


def test_an_event_that_is_refused_is_a_line_in_the_log(caplog):
    Announcer(Server(ClusterError(403, "no events here"))).announce(RESOURCE, "Normal", "Serving", "m")  # type: ignore[arg-type]
    assert "default/demo: cannot write Event Serving: no events here" in caplog.text


def test_normal_reasons_ask_nobody_to_act():
    assert {reason.value for reason in NORMAL} == {
        "Serving", "Suspended", "ScaledToZero", "ModelDownloading", "RollingUpdate", "LoadingWeights",
    }  # fmt: skip
