"""The report of a start: what was loaded, how it is split, and why it has so many K/V slots, as lines for a person."""

from __future__ import annotations

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.state import PipelinePhase

from orca_master.engine.snapshot import EngineSnapshot


def start_report(engine: EngineSnapshot, speculative_tokens: int) -> list[str]:
    """Return the lines about an engine that serves; a line leaves out what older workers do not report.

    `speculative_tokens`: most drafted tokens of a request in an iteration; 0: nothing is drafted.
    """
    formed, topology = engine.formed, engine.topology
    if formed is None:
        return []
    family = f"{formed.family}, " if formed.family else ""
    num_pipelines = len(topology.pipelines)
    serving = sum(pipeline.phase is PipelinePhase.SERVING for pipeline in engine.pipelines)
    pipelines = _counted(num_pipelines, "pipeline") + (f" ({serving} so far)" if serving < num_pipelines else "")
    partitions = _counted(topology.pipeline_parallel_size, "partition")
    ranks = _counted(topology.tensor_parallel_size, "rank")
    device, backend = topology.communication.workers_device, topology.communication.backend
    weights = f" with {formed.quantization} weights" if formed.quantization else ""
    cache = f"{formed.kv_cache_dtype}, " if formed.kv_cache_dtype else ""
    in_pipeline = f" in pipeline {formed.id}" if num_pipelines > 1 else ""
    lines = [
        f"model: {family}{_counted(formed.num_layers, 'layer')}, {formed.dtype}{weights}, "
        f"sequences of at most {formed.max_model_len} tokens{', embeddings only' if formed.embeds_only else ''}",
        f"engine: {pipelines} of {partitions} (P) x {ranks} (T) on {device} ({backend})",
        f"K/V slots{in_pipeline}: {formed.num_slots} ({formed.num_slots // BLOCK_SIZE} blocks of {BLOCK_SIZE}), "
        f"{cache}{formed.sizing}",
    ]
    exactness = f"level {formed.exactness} of exactness"
    lines.insert(2, f"kernels: {formed.kernels}, {exactness}" if formed.kernels else f"kernels: {exactness}")
    if speculative_tokens:
        source = f"the model {draft}" if (draft := topology.model.draft_path) else "repetitions of prompt and answer"
        lines.append(f"drafts: at most {_counted(speculative_tokens, 'token')} of a request at once, from {source}")
    return lines


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
