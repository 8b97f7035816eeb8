"""`load_requests`: what each worker of a pipeline loads; `check_applied`: whether it has; `common_facts`, `difference`:
whether all have loaded the same model.
"""

from __future__ import annotations

from collections.abc import Sequence

from orca_contract.reasons import Reason
from orca_contract.topology import PipelineSpec, Topology
from orca_protos import engine_pb2 as pb

from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError
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


def common_facts(workers: Sequence[str], facts: Sequence[pb.ModelFacts]) -> pb.ModelFacts:
    """Return the facts of a pipeline with workers at these addresses: those of the first, and the files of all.

    Raises WorkerLostError if two of them have different weights.
    """
    common = pb.ModelFacts()
    common.CopyFrom(facts[0])
    for partition, each in enumerate(facts):
        if difference(common, each):
            other = next(place for place in range(partition) if difference(facts[place], each))
            raise different_weights(
                f"partition {other} (worker {workers[other]})",
                f"partition {partition} (worker {workers[partition]})",
                difference(facts[other], each),
                workers[partition],
            )
        common.source = common.source or each.source
        common.file_digest.update(each.file_digest)
    return common


def difference(first: pb.ModelFacts, second: pb.ModelFacts) -> str:
    """Return which weights or settings of two workers or pipelines differ, as far as both report them; "" if none."""
    if first.source and second.source and first.source != second.source:
        return f"fetched revisions {first.source} and {second.source}"
    for name in sorted(first.file_digest.keys() & second.file_digest.keys()):
        if first.file_digest[name] != second.file_digest[name]:
            return f"{name} {first.file_digest[name]} and {second.file_digest[name]}"
    return ""


def different_weights(first: str, second: str, what: str, worker: str) -> WorkerLostError:
    """Return the error for two parts of an engine that would compute other tokens from the same prompt."""
    message = (
        f"{first} and {second} have different weights or settings of the model ({what}): name a commit in "
        "spec.model.revision, or an image by its digest, or change spec.restart.id, after which new pods load the same"
    )
    return WorkerLostError(message, Reason.DIFFERENT_WEIGHTS, worker, outside=True)


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
