"""Which pods are deleted by force, and what the status says of them; scenarios/lost-node has the whole course."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orca_contract.reasons import Reason
from orca_operator import names
from orca_operator.actions import Check, ForceDelete
from orca_operator.cluster import ClusterError
from orca_operator.diagnose import diagnose, look
from orca_operator.lost_nodes import OUT_OF_SERVICE, UNREACHABLE, LostNode, Nodes, forced_deletions, lost_since
from orca_operator.node_reader import REFUSED, NodeReader
from orca_operator.observe import Observed
from orca_operator.plan import plan
from support.orcadeployments import MINIMAL, NOW, context, everything, merged, pod

GRACE = 40
DEMO = context(merged(MINIMAL, replicas=2, recoveryPolicy={"nodeFailureGraceSeconds": GRACE}))


def on(node: str, ending_since: float | None = None, **settings: Any) -> dict[str, Any]:
    found = pod(DEMO, **settings)
    found["spec"]["nodeName"] = node
    if ending_since is not None:
        found["metadata"] |= {"deletionTimestamp": ago(ending_since).isoformat(), "deletionGracePeriodSeconds": 30}
    return found


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def lost(seconds: float, read_seconds_ago: float = 0) -> Nodes:
    return Nodes({"n1": LostNode(ago(seconds), ago(read_seconds_ago))})


def forced(actions) -> list[str]:
    return [action.pod["metadata"]["name"] for action in actions if isinstance(action, ForceDelete)]


@pytest.mark.parametrize(
    ("found", "nodes", "is_forced"),
    [
        (on("n1"), lost(GRACE), True),
        (on("n1", ready=True), lost(GRACE), True),
        (on("n1", ending_since=5), lost(GRACE), True),
        (on("n1", ending_since=-300), lost(GRACE), True),
        (on("n1", role=names.MASTER), lost(GRACE), True),
        (on("n1", revision="abcdef"), lost(GRACE), True),
        (on("n1"), lost(GRACE - 1), False),
        (on("n1"), lost(GRACE, read_seconds_ago=1), False),
        (on("n2", ending_since=9999), lost(GRACE), False),
        (on(""), lost(GRACE), False),
        (on("n1", ending_since=9999), Nodes(refusal=REFUSED), False),
    ],
    ids=[
        "not ready", "not marked yet", "evicted", "evicted with a long drain", "master", "old revision", "too early",
        "not read in this pass", "slow end on another node", "not scheduled", "without the right",
    ],
)  # fmt: skip
def test_pods_of_lost_nodes_are_deleted_after_the_grace(found, nodes, is_forced):
    actions = plan(DEMO, look(Observed((found,)), NOW, nodes=nodes))
    assert forced(actions) == [found["metadata"]["name"]] * is_forced


def test_a_pod_that_only_a_finalizer_keeps_is_not_deleted_again():
    kept = on("n1", ending_since=0)
    kept["metadata"]["deletionGracePeriodSeconds"] = 0
    assert forced_deletions(Observed((kept,)), lost(GRACE), timedelta(0), NOW) == []


def test_an_edit_that_the_api_server_rejects_does_not_hold_a_replacement_up():
    """A rejected dry run ends the pass."""
    edited = context(merged(MINIMAL, worker={"image": "new:1"}, recoveryPolicy={"nodeFailureGraceSeconds": GRACE}))
    actions = plan(edited, look(Observed((*everything(DEMO).children, on("n1", pipeline=5))), NOW, nodes=lost(GRACE)))
    assert [type(action) for action in actions[:2]] == [ForceDelete, Check]


def test_the_status_names_pod_node_and_time():
    found = on("n1", ending_since=5)
    cause = diagnose(look(Observed((found,)), NOW, nodes=lost(GRACE)), DEMO.revision)
    assert (cause.reason, cause.pod) == (Reason.NODE_LOST, found["metadata"]["name"])
    assert f"node n1 is lost since {ago(GRACE):%Y-%m-%dT%H:%M:%SZ}" in cause.message


MARKED = [
    {"type": "Ready", "status": "False"},
    {"type": "ContainersReady", "status": "True"},
]
UNREADY = [
    {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
    {"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady"},
]


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (on("n1", conditions=MARKED), True),
        (on("n1", ending_since=61), True),
        (on("n1", conditions=UNREADY), False),
        (on("n1", ending_since=59), False),
        (on("", conditions=MARKED), False),
    ],
    ids=["marked by the node controller", "overdue", "unready by its kubelet", "ends", "not scheduled"],
)
def test_without_the_right_to_read_nodes_the_status_says_what_may_be(found, named):
    cause = diagnose(look(Observed((found,)), NOW, nodes=Nodes(refusal=REFUSED)), DEMO.revision)
    assert (cause.reason is Reason.NODE_LOST) == named
    assert (REFUSED in cause.message) == named


TAINT = {"key": UNREACHABLE, "effect": "NoExecute"}
SILENT = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T12:00:00Z"}


@pytest.mark.parametrize(
    ("conditions", "taints", "since"),
    [
        ([SILENT], [TAINT], NOW),
        ([SILENT | {"lastTransitionTime": None}], [TAINT], None),
        ([SILENT | {"status": "False"}], [TAINT], None),
        ([SILENT], [TAINT | {"effect": "NoSchedule"}], None),
        ([SILENT], None, None),
        ([], [TAINT], None),
    ],
    ids=["lost", "no time", "reports", "evictions are withheld", "no taint", "no condition"],
)
def test_a_node_is_lost_since_its_kubelet_is_silent_unless_kubernetes_withholds_evictions(conditions, taints, since):
    """It does while most nodes of a zone are silent, or all."""
    assert lost_since({"metadata": {}, "spec": {"taints": taints}, "status": {"conditions": conditions}}) == since
    assert lost_since({"metadata": {}}) is None


def test_a_successor_that_was_scheduled_to_the_lost_node_has_a_grace_of_its_own():
    """Its tolerations may allow that; deleted at once, pods would come and go without an end."""
    for age, is_forced in ((GRACE - 1, False), (GRACE, True)):
        successor = on("n1")
        successor["metadata"]["creationTimestamp"] = ago(age).isoformat()
        assert bool(forced(plan(DEMO, look(Observed((successor,)), NOW, nodes=lost(9999))))) == is_forced


@pytest.mark.parametrize(
    ("claim", "mount", "is_off", "is_forced"),
    [
        ({}, {}, False, False),
        ({}, {}, True, True),
        ({}, {"readOnly": True}, False, True),
        ({"readOnly": True}, {}, False, True),
    ],
    ids=["writes", "writes, node switched off", "read-only mount", "read-only volume"],
)
def test_a_pod_that_writes_to_a_volume_stays_until_its_node_is_known_to_be_off(claim, mount, is_off, is_forced):
    found = on("n1", role=names.MASTER)
    found["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}, {"name": "v", "persistentVolumeClaim": claim}]
    found["spec"]["containers"][0]["volumeMounts"] = [{"name": "tmp"}, {"name": "v", **mount}]
    view = look(Observed((found,)), NOW, nodes=Nodes({"n1": LostNode(ago(GRACE), NOW, is_off)}))
    assert bool(forced(plan(DEMO, view))) == is_forced
    assert (OUT_OF_SERVICE in diagnose(view, DEMO.revision).message) == (not is_forced)


# -- whatever the order of events --------------------------------------------------------------------------------------


class Nodelike:
    """Two nodes whose kubelets come and go; `status` of Ready, `since` its last change; some reads fail."""

    def __init__(self) -> None:
        self.status = dict.fromkeys(("n1", "n2"), "True")
        self.since = dict.fromkeys(self.status, NOW)
        self.refusal = 0

    def set(self, node: str, status: str, now: datetime) -> None:
        if self.status[node] != status:
            self.status[node], self.since[node] = status, now

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        if self.refusal:
            raise ClusterError(self.refusal, "no")
        ready = {"type": "Ready", "status": self.status[name], "lastTransitionTime": self.since[name].isoformat()}
        taints = [TAINT] * (self.status[name] == "Unknown")
        return {"metadata": {"name": name}, "spec": {"taints": taints}, "status": {"conditions": [ready]}}


nodes = st.sampled_from(["n1", "n2"])
events = st.one_of(
    st.tuples(st.just("node"), nodes, st.sampled_from(["True", "False", "Unknown", "Unknown"])),
    st.tuples(st.just("pod"), st.integers(0, 1), st.sampled_from(["ready", "unready", "ending"])),
    st.tuples(st.just("place"), st.integers(0, 1), nodes),
    st.tuples(st.just("reads"), st.just(0), st.sampled_from([0, 403, 500])),
)


LOST, BACK = ("node", "n1", "Unknown"), ("node", "n1", "True")


@example([(0, [LOST]), (GRACE, [BACK, ("reads", 0, 500)])])
@example([(0, [LOST]), (5, [BACK, ("pod", 0, "ending")]), (GRACE, [])])
@given(st.lists(st.tuples(st.sampled_from([0, 5, 20, GRACE]), st.lists(events, max_size=3)), max_size=10))
def test_a_pod_on_a_healthy_node_is_never_forced_and_one_on_a_lost_node_is_in_the_end(passes):
    kubelets, now = Nodelike(), NOW
    reader = NodeReader(kubelets)  # type: ignore[arg-type]
    state = dict.fromkeys(range(2), "unready")
    place = {0: "n1", 1: "n2"}

    def one_pass() -> set[int]:
        found = [
            on(place[index], 0 if state[index] == "ending" else None, ready=state[index] == "ready", pipeline=index)
            for index in range(2)
        ]
        observed = Observed(tuple(found))
        actions = plan(DEMO, look(observed, now, nodes=reader.read(observed, now)))
        deleted = {int(name.rpartition("-")[2]) for name in forced(actions)}
        for index in deleted:
            assert kubelets.status[place[index]] == "Unknown"
            assert now - kubelets.since[place[index]] >= timedelta(seconds=GRACE)
        return deleted

    for seconds, happening in passes:
        now += timedelta(seconds=seconds)
        for what, which, value in happening:
            match what:
                case "node":
                    kubelets.set(which, value, now)
                case "pod":
                    state[which] = value
                case "place":
                    place[which] = value
                case _:
                    kubelets.refusal = value
        for index in one_pass():  # created again on a node that its kubelet reports, or not scheduled
            place[index] = next((name for name, status in kubelets.status.items() if status == "True"), "")
    kubelets.refusal, now = 0, now + timedelta(seconds=GRACE + 60)
    stuck = {index for index in range(2) if kubelets.status.get(place[index]) == "Unknown" and state[index] != "ready"}
    assert one_pass() >= stuck
