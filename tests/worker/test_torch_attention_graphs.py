"""Decode graphs over attention by torch: FlashAttention-3 is played (support/paged_varlen.py), recordings are torch's
operations on the CPU, as a CUDA graph has them.
"""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cuda.torch_attention import TorchAttention, TorchSource
from orca_kernels.interface import PagePools
from orca_kernels.recorder import OperationRecorder
from orca_kernels.reference import ReferenceKernels
from orca_worker.decode_graphs import CUDA_SIZES, DecodeGraphs, PaddingRows
from orca_worker.rows import LastTokens
from support.paged_attention import WithLibrary
from support.paged_varlen import fake_flash_attention
from support.partitions import CPU, PartitionedModel
from torch.nn.attention.varlen import varlen_attn_out

LENGTHS = (1, 33, 50, 17, 2)
BATCHES = ((0, 1, 2), (4, 3, 2, 1, 0), (2,), (3, 0, 1), (0, 1, 2, 3, 4))
"""Requests of the increments, iteration by iteration: batches of 3 and 5 have padding rows."""


class Served:
    """A model of one partition and its requests; `graphs` None runs increments eagerly."""

    def __init__(self, path, kernels, records) -> None:
        self.model = PartitionedModel(path, 1, dtype=torch.bfloat16, kernels=[kernels])
        ((self.partition,),) = self.model.ranks
        padding = PaddingRows(self.model.take_block(), 44)
        recorder = OperationRecorder()
        self.graphs = DecodeGraphs(self.forward, padding, CPU, recorder, CUDA_SIZES) if records else None
        generator = torch.Generator().manual_seed(0)
        vocabulary = self.model.config.vocabulary_size
        self.lengths = list(LENGTHS)
        self.tokens = torch.randint(vocabulary, (len(LENGTHS), 64), generator=generator).tolist()
        prompts = [(row, 0, self.tokens[row][:length]) for row, length in enumerate(LENGTHS)]
        self.prompt_logits = self.model.logits(self.model.iteration(prompts, max_tokens=96))

    def forward(self, tokens, ragged, hidden, adapters=None, last: LastTokens | None = None):
        return self.partition(self.partition.embed(tokens, ragged) if hidden is None else hidden, ragged, last)

    @torch.inference_mode()
    def increments(self, rows):
        parts = [(row, self.lengths[row], [self.tokens[row][self.lengths[row] % 64]]) for row in rows]
        for row in rows:
            self.lengths[row] += 1
        batch = self.model.rows.batch(self.model.iteration(parts, max_tokens=96))
        run = self.graphs.run if self.graphs else lambda batch, hidden: self.forward(batch.tokens, batch.ragged, hidden)
        return self.partition.logits(run(batch, None))


@pytest.mark.parametrize("variant", ["llama-gqa-tied", "mistral-gqa"])
def test_a_replay_equals_the_iteration_without_one_and_the_reference(variant, checkpoint):
    """Contexts and block tables change on the device between replays of one graph."""
    path = checkpoint(variant)
    with fake_flash_attention() as calls:
        config = PartitionedModel(path, 1).config
        recorded, eager = (
            Served(path, WithLibrary(TorchSource(lambda: varlen_attn_out), config), records)
            for records in (True, False)
        )
        reference = Served(path, ReferenceKernels(), records=False)
        assert all(isinstance(layer._attention, TorchAttention) for layer in recorded.partition.attentions())
        torch.testing.assert_close(eager.prompt_logits, reference.prompt_logits, atol=0.1, rtol=0.05)
        for rows in BATCHES:
            logits = recorded.increments(rows)
            assert torch.equal(logits, eager.increments(rows))
            torch.testing.assert_close(logits, reference.increments(rows), atol=0.1, rtol=0.05)
    assert recorded.graphs.refusal == ""
    windows = {call["window"] for call in calls}
    assert windows == ({(-1, 0)} if variant == "llama-gqa-tied" else {(config.windows[0] - 1, 0)})
    for layer in recorded.partition.attentions():
        assert isinstance(layer.pools, PagePools)
        assert layer.pools.keys[recorded.model.free_blocks].isnan().all(), "a row wrote into a block of no request"
