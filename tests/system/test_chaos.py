"""Short forms of `make chaos`: faults under streams, and every stream is that of the undisturbed run."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import warnings

import pytest
from chaos import processes as tree
from chaos.campaign import Campaign, serving
from chaos.faults import KINDS, Fault, combined, everywhere
from chaos.processes import cannot_cut, processes


def check(faults: list[Fault], partitions: int, ranks: int, num_streams: int, rng: random.Random) -> None:
    """Make the faults; without the right to cut connections, all others."""
    if reason := cannot_cut():
        warnings.warn(f"no connection is cut: {reason}", stacklevel=1)
        faults = [fault for fault in faults if " cut" not in fault.kind.name]
    with serving(partitions, ranks) as served:
        campaign = Campaign(served, partitions, ranks)
        asyncio.run(campaign.run(combined(faults, rng), num_streams, 250, rng))
        print(*campaign.report(), sep="\n")
        assert campaign.failures() == []
        assert campaign.tally.resumed, "the master was killed"
        assert not any("failed on it again" in line for line in served.log)


def seeded() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_kind_of_fault_somewhere():
    rng = seeded()
    check([Fault(kind, rng.randrange(kind.places(2))) for kind in KINDS], 2, 2, 8, rng)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_every_kind_of_fault_everywhere():
    check(everywhere(2, 1), 2, 2, 15, seeded())


def test_the_spare_is_the_youngest_rank_also_where_its_process_id_is_the_lowest(monkeypatch):
    """The kernel gives low ids again; a spare that was taken for a rank counted as a survivor that was replaced."""
    commands = {1: "serve", 2: "serve", 3: "worker-0.sock", 31: "orca_worker.rank", 30: "orca_worker.rank"}
    monkeypatch.setattr(tree, "_command", commands.__getitem__)
    monkeypatch.setattr(tree, "_children", lambda pid: {1: [2, 3], 3: [30, 31]}.get(pid, []))
    monkeypatch.setattr(tree, "_start", list(commands).index)
    found = processes(1, ranks_per_worker=1)
    assert found.ranks == {0: [31]}
    assert found.complete(partitions=1, ranks_per_worker=1)
    assert not found.complete(partitions=2, ranks_per_worker=1)


def test_processes_are_ordered_by_the_time_of_their_start():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert tree._start(os.getpid()) < tree._start(child.pid)
        assert child.stdin is not None
        child.stdin.close()
