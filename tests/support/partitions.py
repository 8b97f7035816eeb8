"""The partitions of a model in this process, chained by hand: logits and modules are within reach."""

from __future__ import annotations

from pathlib import Path

import torch
from orca_kernels.interface import BLOCK_SIZE
from orca_kernels.reference import ReferenceKernels
from orca_protos import engine_pb2 as pb
from orca_worker.checkpoint import Checkpoint
from orca_worker.model_config import read_model_config
from orca_worker.models import build
from orca_worker.models.partition import ModelPartition, Share
from orca_worker.rows import RowTable

CPU = torch.device("cpu")


class PartitionedModel:
    """P partitions with pools of `num_blocks` blocks, handed out in a scattered order."""

    def __init__(self, path: Path, num_partitions: int, dtype: torch.dtype = torch.float32, num_blocks: int = 160):
        self.config = read_model_config(path)
        self.num_partitions = num_partitions
        self.partitions: list[ModelPartition] = []
        self.rows = RowTable(self.config.max_positions, CPU)
        self._free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
        for index in range(num_partitions):
            checkpoint = Checkpoint(path, dtype, CPU, lambda _: None)
            share = Share(index, num_partitions, self.config.max_positions, ReferenceKernels(), CPU)
            partition = build(self.config, checkpoint, share)
            shape = (num_blocks, BLOCK_SIZE, self.config.num_kv_heads, self.config.head_dim)
            for attention in partition.attentions():
                # NaN shows every read of a slot that nobody wrote.
                pools = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
                attention.allocate(*pools)
            self.partitions.append(partition)

    def iteration(self, parts: list[tuple[int, int, list[int]]], max_tokens: int) -> pb.Iteration:
        """Returns an Iteration of (row, context length, tokens); context 0 begins a row with `max_tokens` slots."""
        iteration = pb.Iteration()
        for row, context, tokens in parts:
            blocks = [self._free.pop() for _ in range(-(-max_tokens // BLOCK_SIZE))] if context == 0 else []
            iteration.row.append(row)
            iteration.context_length.append(context)
            iteration.num_tokens.append(len(tokens))
            iteration.token.extend(tokens)
            iteration.num_new_blocks.append(len(blocks))
            iteration.new_block.extend(blocks)
            iteration.sample.append(True)
            if context == 0:
                iteration.admission.add(row=row)
        return iteration

    @torch.inference_mode()
    def logits(self, iteration: pb.Iteration) -> torch.Tensor:
        """Runs one iteration over all partitions; returns [S, vocabulary], logits after every token."""
        batch = self.rows.batch(iteration)
        hidden = self.partitions[0].embed(batch.tokens, batch.ragged)
        for partition in self.partitions:
            hidden = partition(hidden, batch.ragged)
        return self.partitions[-1].logits(hidden)
