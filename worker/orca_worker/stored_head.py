"""`with_stored_head`: the head of a checkpoint whose config.json says otherwise, as two kinds of fine-tuning leave it.

A fine-tuned head may be left behind an old `tie_word_embeddings: true`. As in transformers' `tie_weights`, a stored
head that differs from the embedding is used. A model of embeddings, such as Qwen3-Embedding-8B, is saved without the
head of the model that it was, beside `tie_word_embeddings: false`: it is served like its smaller sizes, which are tied.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Container
from typing import TYPE_CHECKING

from orca_worker.models.family import HEAD, ModelConfig

if TYPE_CHECKING:  # model_check.py runs without torch
    from orca_worker.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


def tied_without_head(config: ModelConfig, names: Container[str]) -> ModelConfig:
    """Return the configuration, with a tied head if a checkpoint's tensors are those of the model without a head."""
    is_saved_without = "embed_tokens.weight" in names and HEAD not in names
    return dataclasses.replace(config, tied_head=True) if is_saved_without else config


def with_stored_head(config: ModelConfig, checkpoint: Checkpoint) -> ModelConfig:
    """Return the configuration with the head that the checkpoint has; raise ModelError."""
    if not config.tied_head and (made := tied_without_head(config, checkpoint.names)).tied_head:
        logger.warning("tie_word_embeddings is false, but %s is missing: the embedding is the head", HEAD)
        return made
    if not config.tied_head or HEAD not in checkpoint:
        return config
    embedding, shape = next(iter(config.tensors(0, 1, checkpoint.names)))
    if not checkpoint.differ(embedding, HEAD, shape):
        return config
    logger.warning("tie_word_embeddings is true, but %s differs from %s: the stored head is used", HEAD, embedding)
    return dataclasses.replace(config, tied_head=False)
