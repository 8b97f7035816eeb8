"""Model families, one file each; `build` makes the partition that a rank holds."""

from __future__ import annotations

from orca_worker.checkpoint import Checkpoint
from orca_worker.model_config import ModelConfig
from orca_worker.models.gpt2 import Gpt2Partition
from orca_worker.models.llama import LlamaPartition
from orca_worker.models.partition import ModelPartition, Share

FAMILIES = {
    "gpt2": Gpt2Partition,
    "llama": LlamaPartition,
    "mistral": LlamaPartition,
    "qwen2": LlamaPartition,
    "qwen3": LlamaPartition,
}


def build(config: ModelConfig, checkpoint: Checkpoint, share: Share) -> ModelPartition:
    """Reads the weights of one share and returns its model; raises ModelError."""
    return FAMILIES[config.family](config, checkpoint, share)
