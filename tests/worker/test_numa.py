"""Nodes and their processors, read from faked files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from orca_worker.numa import numa_nodes


def machine(root: Path, nodes: dict[str, str]) -> Path:
    """Write /sys/devices/system/node; return its root."""
    for name, processors in nodes.items():
        folder = root / "sys" / "devices" / "system" / "node" / name
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{processors}\n")
    return root


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({}, {}),
        ({"node0": "0-3"}, {0: {0, 1, 2, 3}}),
        ({"node0": "0"}, {0: {0}}),
        ({"node1": "2-3,6-7", "node0": "0-1,4,5"}, {0: {0, 1, 4, 5}, 1: {2, 3, 6, 7}}),
        ({"node10": "4", "node2": "8"}, {2: {8}, 10: {4}}),
        ({"node0": "0-1", "node1": ""}, {0: {0, 1}}),
    ],
)
def test_the_processors_of_each_node(nodes, expected, tmp_path):
    found = numa_nodes(machine(tmp_path, nodes))
    assert found == expected
    assert list(found) == sorted(found)


def test_a_node_whose_processors_cannot_be_read_is_left_out(tmp_path):
    root = machine(tmp_path, {"node0": "0-1", "node1": "2-3"})
    (root / "sys" / "devices" / "system" / "node" / "node1" / "cpulist").unlink()
    assert numa_nodes(root) == {0: {0, 1}}


def test_this_machine_has_its_processors_in_nodes():
    """A kernel without NUMA support lists none."""
    found = numa_nodes()
    assert not found or os.sched_getaffinity(0) <= set().union(*found.values())
