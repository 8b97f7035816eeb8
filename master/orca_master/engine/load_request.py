"""`load_requests`: what each worker of a pipeline loads; `check_applied`: whether it has."""

from __future__ import annotations

from orca_contract.topology import PipelineSpec, Topology
from orca_protos import engine_pb2 as pb

from orca_master.engine.config import EngineConfig
from orca_master.errors import ConfigurationError


def load_requests(spec: PipelineSpec, topology: Topology, config: EngineConfig) -> list[pb.LoadRequest]:
    """Return the Load requests of the pipeline's workers, in the order of partitions."""
    neighbours = [address for pipeline in topology.pipelines for address in pipeline.workers]
    return [
        pb.LoadRequest(
            model_path=topology.model.path,
            partition=partition,
            pipeline_parallel_size=topology.pipeline_parallel_size,
            tensor_parallel_size=topology.tensor_parallel_size,
            dtype=topology.model.dtype,
            device=topology.communication.workers_device,
            communication_backend=topology.communication.backend,
            socket_interface=topology.communication.socket_interface,
            environment=topology.communication.env,
            max_model_len=topology.model.max_model_len or 0,
            workers_on_host=sum(_host(neighbour) == _host(address) for neighbour in neighbours),
            first_device=_place_on_host(address, neighbours) * topology.tensor_parallel_size,
            enforce_eager=config.enforce_eager,
            deterministic=config.deterministic,
            quantization="" if topology.model.quantization == "none" else topology.model.quantization,
            attention_backend="" if config.attention_backend == "auto" else config.attention_backend,
            kv_cache_dtype="" if topology.model.kv_cache_dtype == "auto" else topology.model.kv_cache_dtype,
            all_reduce="" if config.all_reduce == "library" else config.all_reduce,
            runtime_adapters="" if config.runtime_adapters is None else str(config.runtime_adapters),
            adapter=[pb.Adapter(name=adapter.name, path=adapter.path) for adapter in topology.model.adapters],
            draft_model_path=(topology.model.draft_path or "") if config.speculative_tokens > 0 else "",
        )
        for partition, address in enumerate(spec.workers)
    ]


def check_applied(worker: str, request: pb.LoadRequest, facts: pb.ModelFacts) -> None:
    """Raise ConfigurationError if the worker at an address is of an older version, and has ignored an option."""
    if request.deterministic and not facts.deterministic:
        raise ConfigurationError(
            f"worker {worker} is of an older version without --deterministic: deploy one version of both"
        )
    # Without --quantization, the facts name that of a checkpoint whose files are quantised: "gptq int4".
    for option, wanted, applied in (
        ("--quantization", request.quantization, facts.quantization.split()),
        ("--kv-cache-dtype", request.kv_cache_dtype, [facts.kv_cache_dtype]),
        ("--attention-backend", request.attention_backend, [facts.attention_backend]),
    ):
        if wanted and wanted not in applied:
            raise ConfigurationError(
                f"worker {worker} is of an older version without {option} {wanted}: deploy one version of both"
            )


def _host(address: str) -> str:
    """Return the host of a worker's address, "" for Unix sockets."""
    return "" if address.startswith("unix:") else address.rpartition(":")[0]


def _place_on_host(address: str, addresses: list[str]) -> int:
    """Return the number of workers on the same host before this worker."""
    return sum(_host(other) == _host(address) for other in addresses[: addresses.index(address)])
