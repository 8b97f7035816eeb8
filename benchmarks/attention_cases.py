"""Batches and attentions that kernels.py and attention_sweep.py time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.cuda.attention_library import AttentionChoice, CheckedLibrary
from orca_kernels.cuda.flashinfer_attention import FlashInferSource
from orca_kernels.cuda.torch_attention import TorchSource
from orca_kernels.interface import Attention, AttentionBackendError, AttentionForm, RaggedBatch
from orca_protos import engine_pb2 as pb
from orca_worker.rows import RowTable

Parts = Sequence[tuple[int, int]]
"""Context and new tokens of each request."""


def ragged(parts: Parts, device: torch.device) -> tuple[RaggedBatch, int]:
    """Return a batch over scattered blocks, and the number of blocks."""
    blocks = [-(-sum(part) // BLOCK_SIZE) for part in parts]
    iteration = pb.Iteration(
        row=range(len(parts)), num_tokens=[count for _, count in parts], context_length=[length for length, _ in parts],
        token=[0] * sum(count for _, count in parts), num_new_blocks=blocks,
        new_block=torch.randperm(sum(blocks)).tolist(), sample=[True] * len(parts),
        admission=[pb.Admission(row=row) for row in range(len(parts))],
    )  # fmt: skip
    return RowTable(max(map(sum, parts)), device).batch(iteration).ragged, sum(blocks)


def library_attentions(
    form: AttentionForm, num_heads: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> dict[str, Attention]:
    """Return the attentions of the libraries on a GPU, by name; print why for each library that has none.

    `num_heads`: query heads and key/value heads.
    """
    attentions: dict[str, Attention] = {}
    for source in (TorchSource(), FlashInferSource(device)) if device.type == "cuda" else ():
        try:
            library = CheckedLibrary(source, AttentionChoice("auto", *num_heads), device)
            attentions[source.name] = library.attention(form, dtype)
        except AttentionBackendError as error:
            print(f"attention by {source.name}'s library: {error}")
    return attentions
