"""`local_topology`: the topology of workers on this machine, for `orca serve` and `LLM`."""

from __future__ import annotations

from orca_contract.model_choices import Backend, Device
from orca_contract.topology import Communication, ModelSpec, PipelineSpec, Topology


def local_topology(
    model: ModelSpec,
    pipeline_parallel_size: int,
    tensor_parallel_size: int,
    device: Device,
    backend: Backend,
    addresses: list[str],
) -> Topology:
    """Return the topology of workers on this machine, `pipeline_parallel_size` workers per pipeline."""
    size = pipeline_parallel_size
    return Topology(
        model=model,
        pipeline_parallel_size=size,
        tensor_parallel_size=tensor_parallel_size,
        communication=Communication.of(device, backend, socket_interface="lo"),
        pipelines=[
            PipelineSpec(id=f"local-{index}", workers=addresses[index * size : (index + 1) * size])
            for index in range(len(addresses) // size)
        ],
    )
