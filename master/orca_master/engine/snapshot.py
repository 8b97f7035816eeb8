"""`EngineSnapshot`: immutable engine state, published by the engine's loop and read by other threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from orca_contract.state import EngineState, PipelineReport
from orca_contract.topology import Topology
from orca_protos import engine_pb2 as pb

from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.engine.recovery import Recovery


class LoadedBytes(NamedTuple):
    """Bytes of weights that workers have read, and have to read in all; only of workers that have begun."""

    done: int = 0
    total: int = 0

    @classmethod
    def sum(cls, parts: Iterable[LoadedBytes]) -> LoadedBytes:
        """Add the bytes of several workers or pipelines."""
        return cls(*map(sum, zip((0, 0), *parts, strict=True)))


@dataclass(frozen=True, slots=True)
class FormedPipeline:
    """What the workers of a pipeline reported while it was formed. `family`, `kernels`: "" from older workers."""

    id: str
    family: str
    num_layers: int
    dtype: str
    max_model_len: int
    kernels: str
    num_slots: int
    sizing: str
    """Why the pipeline has so many K/V slots, for people."""
    exactness: str
    """Level of exactness, "L1" or "L2" (docs/contracts.md, section 7)."""
    quantization: str = ""
    """Of the weights, as "int8" or "int4"; "" without."""
    kv_cache_dtype: str = ""
    """Of cached keys and values, "int8"; "" if it is `dtype`."""
    embeds_only: bool = False
    """True if the model has no head, and so generates nothing."""


class EngineSnapshot(NamedTuple):
    """State of the engine at one time. A tuple, because one is created per iteration."""

    state: EngineState
    failure: str
    """Why the engine is in this state; "" while it serves."""
    topology: Topology
    pipelines: tuple[PipelineReport, ...] = ()
    vocabulary_size: int = 0
    """0 before the first pipeline serves, as are the next two fields."""
    max_model_len: int = 0
    num_slots: int = 0
    """K/V slots of the largest serving pipeline."""
    cache_usage: float = 0.0
    """Held fraction of the K/V slots of all serving pipelines, in [0, 1]."""
    num_running: int = 0
    """Requests that hold K/V slots."""
    num_waiting: int = 0
    """Interactive requests in the queue."""
    num_iterations: int = 0
    """Iterations that have returned."""
    progressed_at: float = 0.0
    """Time of the last returned iteration or pipeline start, in seconds of the monotonic clock."""
    formed: FormedPipeline | None = None
    """The pipeline that began to serve last."""
    loaded_bytes: LoadedBytes = LoadedBytes()
    """Of all workers, while the engine is loading."""
    stall_seconds: float = 0.0
    """Longest bound of the pipelines' latest iterations."""
    recovery: Recovery = Recovery()
    """The current recovery, or the last one."""
    expected_wait: float = 0.0
    """Seconds in which all waiting requests are expected to have begun; 0 if none waits or nothing is measured."""
    num_blocks: int = 0
    """K/V blocks of all serving pipelines."""
    idle_since: float = 0.0
    """Since when no accepted request is unfinished, in seconds of the monotonic clock; infinite while one is."""
    has_backlog: bool = False
    """See StateReport."""
    adapters: tuple[ServedAdapter, ...] = ()
    """The adapters beside those of the topology that requests may use."""
    weights: pb.ModelFacts = pb.ModelFacts()
    """See PipelineSet."""
