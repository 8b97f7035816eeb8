"""Builds the LoadRequest of a worker: model, partition, and its place among the workers of its host."""

from __future__ import annotations

from orca_contract.topology import Topology
from orca_protos import engine_pb2 as pb


def build_load(topology: Topology, partition: int, address: str, enforce_eager: bool) -> pb.LoadRequest:
    """Return the request for the worker at `address`; `enforce_eager`: see EngineConfig."""
    neighbours = [worker for pipeline in topology.pipelines for worker in pipeline.workers]
    return pb.LoadRequest(
        model_path=topology.model.path,
        partition=partition,
        pipeline_parallel_size=topology.pipeline_parallel_size,
        tensor_parallel_size=topology.tensor_parallel_size,
        dtype=topology.model.dtype,
        device="cuda" if topology.communication.backend == "nccl" else "cpu",
        communication_backend=topology.communication.backend,
        socket_interface=topology.communication.socket_interface,
        environment=topology.communication.env,
        max_model_len=topology.model.max_model_len or 0,
        workers_on_host=sum(_host(neighbour) == _host(address) for neighbour in neighbours),
        first_device=_place_on_host(address, neighbours) * topology.tensor_parallel_size,
        enforce_eager=enforce_eager,
    )


def _host(address: str) -> str:
    """Return the host of a worker's address, "" for Unix sockets."""
    return "" if address.startswith("unix:") else address.rpartition(":")[0]


def _place_on_host(address: str, addresses: list[str]) -> int:
    """Return the number of workers on the same host before this worker."""
    return sum(_host(other) == _host(address) for other in addresses[: addresses.index(address)])
