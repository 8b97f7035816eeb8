"""`with_stored_head`: a checkpoint that stores a head of its own although config.json ties the head to the embedding.

A fine-tuned head may be left behind an old `tie_word_embeddings`. As in transformers' `tie_weights`, a stored head that
differs from the embedding is used.
"""

from __future__ import annotations

import dataclasses
import logging

from orca_worker.checkpoint import Checkpoint
from orca_worker.models.family import ModelConfig

HEAD = "lm_head.weight"

logger = logging.getLogger(__name__)


def with_stored_head(config: ModelConfig, checkpoint: Checkpoint) -> ModelConfig:
    """Return the configuration, without a tied head if the checkpoint has another; raise ModelError."""
    if not config.tied_head or HEAD not in checkpoint:
        return config
    embedding, shape = next(iter(config.tensors(0, 1, checkpoint.names)))
    if not checkpoint.differ(embedding, HEAD, shape):
        return config
    logger.warning("tie_word_embeddings is true, but %s differs from %s: the stored head is used", HEAD, embedding)
    return dataclasses.replace(config, tied_head=False)
