"""What Events say of children that do not come up; scenarios/quota has the whole course."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from orca_contract.reasons import Reason
from orca_operator import names
from orca_operator.child_events import (
    LATEST_SECONDS,
    MOST_READS,
    PAUSE_SECONDS,
    READ_SECONDS,
    SETTLED_SECONDS,
    START_SECONDS,
    ChildEvents,
    cause_of,
    silent_children,
)
from orca_operator.cluster import ClusterError
from orca_operator.diagnose import Diagnosis, diagnose, look
from orca_operator.observe import Observed
from support.orcadeployments import MINIMAL, NOW, context, everything, pod

DEMO = context(MINIMAL)
STATEFUL_SET = names.partition("demo", DEMO.revision, 0)
EXCEEDED = 'create Pod p in StatefulSet s failed error: pods "p" is forbidden: exceeded quota: small'
MICROSECONDS = NOW.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def event(reason: str, message: str = "", age: float = 0, **fields: Any) -> dict[str, Any]:
    time = (NOW - timedelta(seconds=age)).isoformat()
    return {"metadata": {"creationTimestamp": time}, "reason": reason, "message": message, **fields}


def child(kind: str, name: str = "x") -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "uid": f"uid-{name}"}}


@pytest.mark.parametrize(
    ("kind", "events", "expected"),
    [
        ("StatefulSet", [event("FailedCreate", EXCEEDED)], Reason.QUOTA_EXCEEDED),
        ("StatefulSet", [event("FailedCreate", "no PriorityClass with name x was found")], Reason.POD_CREATION_FAILED),
        ("Pod", [event("FailedMount", 'secret "keys" not found')], Reason.VOLUME_MOUNT_FAILED),
        ("Pod", [event("FailedAttachVolume", "Multi-Attach error")], Reason.VOLUME_MOUNT_FAILED),
        ("Pod", [event("FailedCreate", "of another kind")], None),
        ("Pod", [event("Unhealthy")], None),
        ("StatefulSet", [], None),
        ("StatefulSet", [event("FailedCreate", EXCEEDED, age=LATEST_SECONDS + 1)], None),
        ("Pod", [event("FailedMount", age=60), event("Unhealthy", age=5)], None),
        ("Pod", [event("FailedMount", age=60), event("Pulling", age=60)], None),
        ("Pod", [event("FailedMount", age=60), event("DNSConfigForming", age=5)], Reason.VOLUME_MOUNT_FAILED),
        ("Pod", [event("FailedMount", age=60), event("SuccessfulAttachVolume")], Reason.VOLUME_MOUNT_FAILED),
        ("StatefulSet", [event("FailedCreate", age=60), event("PolicyViolation")], Reason.POD_CREATION_FAILED),
        ("StatefulSet", [event("FailedCreate", age=60), event("SuccessfulCreate", age=5)], None),
        ("StatefulSet", [event("FailedCreate"), event("SuccessfulCreate")], Reason.POD_CREATION_FAILED),
        ("Pod", [{"metadata": {"creationTimestamp": None}, "reason": "FailedMount", "message": None}], None),
        ("Pod", [{"metadata": {}, "reason": "FailedMount", "lastTimestamp": "yesterday"}], None),
        ("Pod", [event("Unhealthy", age=60), event("FailedMount", age=90, lastTimestamp=NOW.isoformat())],
         Reason.VOLUME_MOUNT_FAILED),
        ("Pod", [event("FailedMount", age=9000, lastTimestamp=None, series={"lastObservedTime": NOW.isoformat()})],
         Reason.VOLUME_MOUNT_FAILED),
        ("Pod", [event("FailedMount", age=9000, lastTimestamp=None, series=None, eventTime=MICROSECONDS)],
         Reason.VOLUME_MOUNT_FAILED),
    ],
)  # fmt: skip
def test_the_latest_event_names_the_cause(kind, events, expected):
    cause = cause_of(child(kind), events, NOW)
    assert (cause and cause.reason) == expected
    assert cause is None or cause.message.startswith("x: ")


def test_only_children_that_do_not_come_up_are_looked_at():
    observed = everything(DEMO)
    references = [{"controller": True, "uid": f"uid-{STATEFUL_SET}"}]
    owned = [
        {**found, "metadata": {**found["metadata"], "ownerReferences": references}}
        if found["kind"] == "Pod" and names.WORKER in found["metadata"]["labels"].values()
        else found
        for found in observed.children
    ]  # fmt: skip
    assert silent_children(Observed(tuple(owned)), NOW) == []
    without_pods = tuple(found for found in owned if found["kind"] != "Pod")
    assert [found["metadata"]["name"] for found in silent_children(Observed(without_pods), NOW)] == [STATEFUL_SET]


@pytest.mark.parametrize(
    ("age", "state", "expected"),
    [
        (START_SECONDS + 1, {"waiting": {"reason": "ContainerCreating"}}, True),
        (START_SECONDS - 1, {"waiting": {"reason": "ContainerCreating"}}, False),
        (600, {"running": {}}, False),
        (600, {"terminated": {"exitCode": 1}}, False),
        (600, {"waiting": {"reason": "ImagePullBackOff"}}, False),
        (600, {"waiting": {"reason": "PodInitializing"}}, True),
    ],
)
def test_a_pod_is_looked_at_after_a_while_without_a_container(age, state, expected):
    waiting = pod(DEMO, containerStatuses=[{"name": "worker", "image": "i", "state": state}])
    waiting["metadata"]["creationTimestamp"] = (NOW - timedelta(seconds=age)).isoformat()
    assert bool(silent_children(Observed((waiting,)), NOW)) == expected


class Events:
    """An API server with the same Events of every child; `refusal` if they may not be read."""

    def __init__(self, *answers: dict[str, Any], refusal: ClusterError | None = None) -> None:
        self.answers = list(answers)
        self.refusal = refusal
        self.asked: list[str] = []

    def events(self, namespace: str, uid: str) -> list[dict[str, Any]]:
        self.asked.append(uid)
        if self.refusal is not None:
            raise self.refusal
        return self.answers


def reader(events: Events) -> ChildEvents:
    return ChildEvents(events)  # type: ignore[arg-type]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_an_operator_without_the_right_to_read_events_goes_on_and_asks_seldom():
    events = Events(event("FailedCreate", EXCEEDED), refusal=ClusterError(403, "events is forbidden"))
    children, found = [child("StatefulSet"), child("StatefulSet", "y")], reader(events)
    assert found.causes("default", children, NOW) == {}
    assert found.causes("default", children, at(PAUSE_SECONDS - 1)) == {}
    assert len(events.asked) == 1
    events.refusal = None
    causes = found.causes("default", children, at(PAUSE_SECONDS))
    assert {name: cause.reason for name, cause in causes.items()} == dict.fromkeys("xy", Reason.QUOTA_EXCEEDED)


def test_a_failed_read_does_not_change_the_cause():
    """Or the reason of Ready would change twice, with an Event each time."""
    events = Events(event("FailedCreate", EXCEEDED))
    found = reader(events)
    before = found.causes("default", [child("StatefulSet")], NOW)
    events.refusal = ClusterError(0, "silence")
    assert found.causes("default", [child("StatefulSet")], at(READ_SECONDS)) == before != {}
    assert len(events.asked) == 2


@pytest.mark.parametrize(
    ("kind", "reason", "seconds"),
    [("Pod", "FailedMount", READ_SECONDS), ("Pod", "Scheduled", READ_SECONDS), ("Pod", "Pulling", SETTLED_SECONDS)],
)
def test_a_child_is_read_again_after_a_while(kind, reason, seconds):
    """Passes come every five seconds and with each watch event while a pod pulls its image, perhaps for 20 minutes."""
    events = Events(event(reason))
    found = reader(events)
    causes = [found.causes("default", [child(kind)], at(moment)) for moment in range(seconds)]
    assert len(events.asked) == 1
    assert causes == causes[:1] * seconds
    found.causes("default", [child(kind)], at(seconds))
    assert len(events.asked) == 2


def test_a_pass_reads_the_events_of_few_children_and_the_next_one_those_of_others():
    events = Events()
    found, children = reader(events), [child("Pod", str(number)) for number in range(MOST_READS + 2)]
    found.causes("default", children, NOW)
    assert len(events.asked) == MOST_READS
    found.causes("default", children, at(1))
    assert sorted(events.asked) == sorted(each["metadata"]["uid"] for each in children)


def test_a_child_that_came_up_is_forgotten():
    events = Events(event("FailedMount"))
    found = reader(events)
    assert found.causes("default", [child("Pod")], NOW)
    assert found.causes("default", [], at(1)) == {}
    events.answers = []
    assert found.causes("default", [child("Pod")], at(2)) == {}


def test_the_cause_in_the_status_of_a_pod_is_not_hidden_by_an_event():
    starting = pod(DEMO, containerStatuses=[])
    name = starting["metadata"]["name"]
    told = {name: Diagnosis(Reason.VOLUME_MOUNT_FAILED, "not mounted")}
    lost = {**starting, "status": {**starting["status"], "reason": "NodeLost"}}
    for found, reason in ((starting, Reason.VOLUME_MOUNT_FAILED), (lost, Reason.NODE_LOST)):
        assert look(Observed((found,)), NOW, told).diagnoses[name].reason is reason


def test_a_master_that_cannot_be_created_is_named_by_its_deployment():
    failure = {"type": "ReplicaFailure", "status": "True", "message": EXCEEDED}
    children = [
        {**found, "status": {"conditions": [failure]}} if found["kind"] == "Deployment" else found
        for found in everything(DEMO).children
        if found["kind"] != "Pod"
    ]
    cause = diagnose(look(Observed(tuple(children)), NOW), DEMO.revision)
    assert cause.reason is Reason.QUOTA_EXCEEDED
    assert names.master("demo", DEMO.revision) in cause.message
