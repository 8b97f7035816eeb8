"""`PipelineWorkers` and `PipelineReceiver`: the interfaces between a supervisor and the workers of its pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.state import PipelinePhase
from orca_contract.topology import PipelineSpec, Topology
from orca_protos import engine_pb2 as pb

from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.snapshot import FormedPipeline, LoadedBytes
from orca_master.scheduling.batch import Batch


class PipelineReceiver(Protocol):
    """Callbacks for the messages of a formed pipeline's workers. Called on the event loop of the supervisor."""

    def on_result(self, result: pb.IterationResult) -> None:
        """Process the result of an iteration."""

    def on_timing(self, timing: pb.StageTiming) -> None:
        """Record the timings of an iteration on one partition."""

    def on_departure(self, worker: str) -> None:
        """Note that the worker at this address got a signal to end; it computes until the streams are closed."""


class PipelineWorkers(Protocol):
    """The workers of one pipeline, for one formation: `Pipeline`, or a fake in tests."""

    facts: pb.ModelFacts
    num_blocks: int
    sizing: str
    warmup_seconds: float
    epoch: int
    num_loaded: int
    loaded_bytes: LoadedBytes

    async def form(self, enter: Callable[[PipelinePhase], None], previous_num_blocks: int) -> None:
        """See Pipeline.form."""

    def send(self, batch: Batch) -> int:
        """See Pipeline.send."""

    def send_masks(self, sequence: int, masks: pb.TokenMasks) -> None:
        """See Pipeline.send_masks."""

    async def change_adapters(
        self, kept: Sequence[int], loaded: pb.RuntimeAdapter | None, iteration_seconds: float = 0.0
    ) -> str:
        """See Pipeline.change_adapters."""

    async def serve(self, receiver: PipelineReceiver) -> None:
        """See Pipeline.serve."""

    @property
    def reported(self) -> list[WorkerLostError]:
        """See Pipeline.reported."""

    async def reported_until_conclusive(self) -> list[WorkerLostError]:
        """See Pipeline.reported_until_conclusive."""

    async def shutdown(self, reason: str) -> None:
        """See Pipeline.shutdown."""

    async def close(self) -> None:
        """See Pipeline.close."""


MakeWorkers = Callable[[PipelineSpec, Topology, EngineConfig], PipelineWorkers]


def formed_pipeline(pipeline: str, workers: PipelineWorkers) -> FormedPipeline:
    """Return what the workers of `pipeline` reported while they were formed."""
    facts = workers.facts
    return FormedPipeline(
        pipeline,
        facts.family,
        facts.num_layers,
        facts.dtype,
        facts.max_model_len,
        facts.kernels,
        workers.num_blocks * BLOCK_SIZE,
        workers.sizing,
        "L2" if facts.deterministic else "L1",
        facts.quantization,
        facts.kv_cache_dtype,
        facts.embeds_only,
    )
