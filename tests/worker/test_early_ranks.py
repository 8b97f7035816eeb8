"""Early ranks: the option that describes them, and that the master of `orca serve` loads into just such ranks."""

from __future__ import annotations

import argparse

import pytest
from orca_contract.topology import ModelSpec
from orca_master.commands.local_topology import local_topology
from orca_master.engine.config import EngineConfig
from orca_master.engine.load_request import load_requests
from orca_worker.cli import main
from orca_worker.early_ranks import rank_places
from orca_worker.rank_start import RankPlaces
from orca_worker.ranks import rank_starts


def test_the_option():
    assert rank_places("2:4:8:cuda") == RankPlaces(2, 4, 8, "cuda", "nccl", "lo")
    assert rank_places("1:0:2:cpu") == RankPlaces(1, 0, 2, "cpu", "gloo", "lo")
    assert rank_places("1:0:2:cuda:gloo") == RankPlaces(1, 0, 2, "cuda", "gloo", "lo")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1:0:1:tpu",
        "1:0:1:cpu:",
        "1:0:1:cpu:nccl",
        "1:0:1:cuda:mpi",
        "-1:0:1:cpu",
        "0:0:1:cpu",
        "2:1:4:cpu",
        "2:2:2:cpu",
        "2:0:3:cpu",
    ],
)
def test_a_mistake_in_the_option(text, capsys):
    with pytest.raises(argparse.ArgumentTypeError):
        rank_places(text)
    with pytest.raises(SystemExit, match="2"):
        main(["--listen", "unix:/nowhere", f"--start-ranks={text}"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("orca worker: error: argument --start-ranks: ")


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl"), ("cuda", "gloo")])
@pytest.mark.parametrize(("replicas", "partitions", "ranks"), [(1, 1, 1), (1, 2, 3), (2, 2, 1), (3, 1, 2)])
def test_they_are_started_like_the_ranks_of_the_load(device, backend, replicas, partitions, ranks):
    num_workers = replicas * partitions
    addresses = [f"unix:/tmp/{index}" for index in range(num_workers)]
    model = ModelSpec(path="/model", served_name="model")
    topology = local_topology(model, partitions, ranks, device, backend, addresses)
    requests = [request for spec in topology.pipelines for request in load_requests(spec, topology, EngineConfig())]
    for index, request in enumerate(requests):
        early = rank_places(f"{ranks}:{index * ranks}:{num_workers * ranks}:{device}:{backend}")
        starts, wanted = early.starts({}, may_pin=True), rank_starts(request, may_pin=True)
        assert starts == wanted
        assert all(start.environment["GLOO_SOCKET_IFNAME"] == "lo" for start in starts)
    assert [(request.device, request.communication_backend) for request in requests] == [
        (device, backend)
    ] * num_workers
