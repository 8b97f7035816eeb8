"""What Events say of children that do not come up; scenarios/quota has the whole course."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from orca_contract.reasons import Reason
from orca_operator import names
from orca_operator.child_events import LATEST_SECONDS, START_SECONDS, cause_of, read_causes, silent_children
from orca_operator.cluster import ClusterError
from orca_operator.diagnose import diagnose, look
from orca_operator.observe import Observed
from support.orcadeployments import MINIMAL, NOW, context, everything, pod

DEMO = context(MINIMAL)
STATEFUL_SET = names.partition("demo", DEMO.revision, 0)
EXCEEDED = 'create Pod p in StatefulSet s failed error: pods "p" is forbidden: exceeded quota: small'


def event(reason: str, message: str = "", age: float = 0, **fields: Any) -> dict[str, Any]:
    time = (NOW - timedelta(seconds=age)).isoformat()
    return {"metadata": {"creationTimestamp": time}, "reason": reason, "message": message, **fields}


def child(kind: str) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "x", "uid": "u"}}


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
        ("Pod", [event("Unhealthy", age=60), event("FailedMount", age=90, lastTimestamp=NOW.isoformat())],
         Reason.VOLUME_MOUNT_FAILED),
        ("Pod", [event("FailedMount", age=9000, lastTimestamp=None, series={"lastObservedTime": NOW.isoformat()})],
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
    ],
)
def test_a_pod_is_looked_at_after_a_while_without_a_container(age, state, expected):
    waiting = pod(DEMO, containerStatuses=[{"name": "worker", "image": "i", "state": state}])
    waiting["metadata"]["creationTimestamp"] = (NOW - timedelta(seconds=age)).isoformat()
    assert bool(silent_children(Observed((waiting,)), NOW)) == expected


class Events:
    """An API server with Events; `refusal` if they may not be read."""

    def __init__(self, refusal: ClusterError | None = None) -> None:
        self.refusal = refusal
        self.asked: list[str] = []

    def warnings(self, namespace: str, uid: str) -> list[dict[str, Any]]:
        self.asked.append(uid)
        if self.refusal is not None:
            raise self.refusal
        return [event("FailedCreate", EXCEEDED)]


def test_an_operator_without_the_right_to_read_events_goes_on():
    refused = Events(ClusterError(403, "events is forbidden"))
    children = [child("StatefulSet"), child("StatefulSet")]
    assert read_causes(refused, "default", children, NOW) == {}  # type: ignore[arg-type]
    assert len(refused.asked) == 1
    allowed = Events()
    causes = read_causes(allowed, "default", children, NOW)  # type: ignore[arg-type]
    assert causes["x"].reason is Reason.QUOTA_EXCEEDED


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
