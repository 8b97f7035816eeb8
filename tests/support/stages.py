"""A `Stage` of one rank on the CPU, which computes a whole model without a worker."""

from __future__ import annotations

from pathlib import Path

from orca_protos import engine_pb2 as pb
from orca_worker.stage import Stage


def whole_stage(model: Path, num_blocks: int, dtype: str = "float32") -> Stage:
    """Return a stage of epoch 1 with `num_blocks` K/V blocks."""
    request = pb.LoadRequest(
        model_path=str(model), pipeline_parallel_size=1, tensor_parallel_size=1, dtype=dtype, device="cpu",
        workers_on_host=1,
    )  # fmt: skip
    stage = Stage(request, 0, lambda _: None)
    stage.prepare(1)
    stage.allocate(num_blocks)
    return stage
