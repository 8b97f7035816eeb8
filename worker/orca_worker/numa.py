"""NUMA nodes of this machine and their processors (kernel documentation: ABI/stable/sysfs-devices-node).

`root` is `/`, except in tests.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from orca_worker.cgroup import ROOT


def numa_nodes(root: Path = ROOT) -> dict[int, frozenset[int]]:
    """Return the processors of each node that has any, by the node's number; {} if they cannot be read."""
    nodes = {}
    for folder in (root / "sys" / "devices" / "system" / "node").glob("node[0-9]*"):
        with contextlib.suppress(OSError):  # a sandbox may hide the files
            if processors := _processors((folder / "cpulist").read_text()):  # a node may have only memory
                nodes[int(folder.name.removeprefix("node"))] = processors
    return dict(sorted(nodes.items()))


def _processors(text: str) -> frozenset[int]:
    """Return the numbers of a list such as "0-3,8"."""
    ranges = (match.groups() for match in re.finditer(r"(\d+)(?:-(\d+))?", text))
    return frozenset(number for first, last in ranges for number in range(int(first), int(last or first) + 1))
