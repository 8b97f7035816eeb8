"""Which nodes are read, when, and what a failed read leaves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from orca_operator.cluster import ClusterError
from orca_operator.lost_nodes import UNREACHABLE
from orca_operator.node_reader import MOST_READS, PAUSE_SECONDS, READ_SECONDS, REFUSED, NodeReader
from orca_operator.observe import Observed
from support.orcadeployments import NOW, context, pod

DEMO = context()


class Server:
    """Nodes by name: the status of Ready, or the HTTP status of a refusal."""

    def __init__(self, **nodes: str | int) -> None:
        self.nodes: dict[str, str | int] = dict(nodes)
        self.reads: list[str] = []

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind, namespace) == ("Node", "")
        self.reads.append(name)
        found = self.nodes.get(name)
        if isinstance(found, int):
            raise ClusterError(found, "no")
        if found is None:
            return None
        ready = {"type": "Ready", "status": found, "lastTransitionTime": NOW.isoformat()}
        taints = [{"key": UNREACHABLE, "effect": "NoExecute"}] * (found == "Unknown")
        return {"metadata": {"name": name}, "spec": {"taints": taints}, "status": {"conditions": [ready]}}


def pods(*nodes: str, ready: bool = False) -> Observed:
    """Return one pod on each node; "" for one that is not scheduled."""
    found = [pod(DEMO, pipeline=index, ready=ready) for index in range(len(nodes))]
    for each, node in zip(found, nodes, strict=True):
        each["spec"]["nodeName"] = node
    return Observed(tuple(found))


def later(seconds: float):
    return NOW + timedelta(seconds=seconds)


def reader(server: Server) -> NodeReader:
    return NodeReader(server)  # type: ignore[arg-type]


def test_only_nodes_of_pods_that_are_not_ready_are_read():
    server = Server(a="True", b="True")
    assert reader(server).read(pods("a", "b", ready=True), NOW).lost == {}
    assert server.reads == []
    ending = pods("b", ready=True)
    ending.children[0]["metadata"]["deletionTimestamp"] = NOW.isoformat()
    for observed, nodes in ((pods("a", "", "a"), ["a"]), (ending, ["b"])):
        server.reads.clear()
        reader(server).read(observed, NOW)
        assert server.reads == nodes


@pytest.mark.parametrize(("status", "lost"), [("Unknown", True), ("False", False), ("True", False)])
def test_a_node_is_lost_while_its_kubelet_does_not_report(status, lost):
    assert ("a" in reader(Server(a=status)).read(pods("a"), NOW).lost) == lost


def test_a_node_that_does_not_exist_is_left_to_kubernetes():
    assert reader(Server()).read(pods("a"), NOW).lost == {}


def test_a_lost_node_is_read_in_every_pass_and_another_one_less_often():
    server = Server(a="True", b="Unknown")
    nodes = reader(server)
    for seconds in (0, 1, 2):
        nodes.read(pods("a", "b"), later(seconds))
    assert sorted(server.reads) == ["a", "b", "b", "b"]
    server.nodes["b"] = "True"
    assert nodes.read(pods("a", "b"), later(3)).lost == {}
    server.nodes["a"] = "Unknown"
    assert set(nodes.read(pods("a", "b"), later(READ_SECONDS)).lost) == {"a"}


def test_a_pass_reads_a_bounded_number_of_nodes_and_the_next_one_others():
    names = [f"n{index:02}" for index in range(2 * MOST_READS)]
    server = Server(**dict.fromkeys(names, "Unknown"))
    nodes = reader(server)
    first = nodes.read(pods(*names), NOW)
    assert len(server.reads) == len(first.lost) == MOST_READS
    second = nodes.read(pods(*names), later(5))
    assert sorted(server.reads) == names
    assert set(second.lost) == set(names), "those of the first pass are known"
    assert sum(loss.read_at == later(5) for loss in second.lost.values()) == MOST_READS


def test_a_failed_read_keeps_the_earlier_reading_with_its_time():
    server = Server(a="Unknown")
    nodes = reader(server)
    nodes.read(pods("a"), NOW)
    server.nodes["a"] = 500
    found = nodes.read(pods("a"), later(5))
    assert found.lost["a"].read_at == NOW
    assert found.refusal == ""


def test_without_the_right_there_is_a_pause_and_no_node_is_lost():
    server = Server(a="Unknown")
    nodes = reader(server)
    nodes.read(pods("a"), NOW)
    server.nodes["a"] = 403
    assert nodes.read(pods("a"), later(5)).refusal == REFUSED
    server.reads.clear()
    found = nodes.read(pods("a"), later(6))
    assert (found.lost, found.refusal, server.reads) == ({}, REFUSED, [])


def test_the_right_is_noticed_while_all_pods_are_ready():
    server = Server(a=403, b="True")
    nodes = reader(server)
    nodes.read(pods("a"), NOW)
    server.nodes["a"] = "True"
    server.reads.clear()
    assert nodes.read(pods("a", "b", ready=True), later(PAUSE_SECONDS)).refusal == ""
    assert server.reads == ["a"]
    nodes.read(pods("a", "b", ready=True), later(2 * PAUSE_SECONDS))
    assert server.reads == ["a"]
