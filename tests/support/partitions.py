"""The partitions of a model in this process, without workers, so that tests can read logits and modules."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.model_choices import KvCacheDtype, Quantization
from orca_kernels.interface import AnyPools, Kernels
from orca_kernels.select import kernels_for
from orca_protos import engine_pb2 as pb
from orca_worker.checkpoint import Checkpoint
from orca_worker.model_config import read_model_config
from orca_worker.models.family import ModelPartition, PartitionSpec
from orca_worker.models.parts import build
from orca_worker.rows import RowTable
from orca_worker.tensor_parallel_group import TensorParallelGroup

CPU = torch.device("cpu")


def unwritten(pools: AnyPools) -> AnyPools:
    """Return the pools with NaN, which reveals reads of slots that were not written; integers stay."""
    return type(pools)(*(pool.fill_(float("nan")) if pool.is_floating_point() else pool for pool in pools))


class ThreadGroup(TensorParallelGroup):
    """T ranks as threads of this process, which exchange tensors at a barrier instead of in a process group."""

    def __init__(self, rank: int, size: int, meeting: list[torch.Tensor | None], barrier: threading.Barrier):
        super().__init__(rank, size)
        self._meeting, self._barrier = meeting, barrier

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange(x)).sum(0) if self.size > 1 else x

    def gather_columns(self, x: torch.Tensor, total: int) -> torch.Tensor:
        return torch.cat(self._exchange(x), dim=1) if self.size > 1 else x

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._meeting[self.rank] = x
        self._barrier.wait(30)
        everyone = [part for part in self._meeting if part is not None]
        self._barrier.wait(30)
        return everyone


class PartitionedModel:
    """P partitions of T ranks, with pools of `num_blocks` blocks, allocated in a random order."""

    def __init__(
        self,
        path: Path,
        num_partitions: int,
        tensor_parallel_size: int = 1,
        dtype: torch.dtype = torch.float32,
        num_blocks: int = 160,
        kernels: Sequence[Kernels] | None = None,
        quantization: Quantization = "none",
        kv_cache_dtype: KvCacheDtype = "auto",
    ):
        """`kernels`: by partition; default: the best ones for this CPU."""
        self.config = read_model_config(path)
        self.rows = RowTable(self.config.max_positions, CPU)
        self.free_blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
        self._quantization = quantization
        self._kv_cache_dtype = kv_cache_dtype
        self._kernels = kernels or [kernels_for(CPU, dtype)] * num_partitions
        meeting: list[torch.Tensor | None] = [None] * tensor_parallel_size
        barrier = threading.Barrier(tensor_parallel_size)
        self.ranks: list[list[ModelPartition]] = []
        """By tensor-parallel rank, then by partition."""
        for rank in range(tensor_parallel_size):
            group = ThreadGroup(rank, tensor_parallel_size, meeting, barrier)
            self.ranks.append(
                [self._build(path, p, num_partitions, dtype, num_blocks, group) for p in range(num_partitions)]
            )

    def _build(self, path, index, num_partitions, dtype, num_blocks, group) -> ModelPartition:
        checkpoint = Checkpoint(path, dtype, CPU, lambda _: None)
        length, kernels = self.config.max_positions, self._kernels[index]
        spec = PartitionSpec(
            index, num_partitions, length, kernels, CPU, group, self._quantization, self._kv_cache_dtype
        )
        partition = build(self.config, checkpoint, spec)
        for attention in partition.attentions():
            attention.allocate(unwritten(attention.new_pools(num_blocks, dtype, CPU)))
        return partition

    def take_block(self) -> int:
        """Return a free block and remove it from `free_blocks`."""
        return self.free_blocks.pop()

    def iteration(self, parts: list[tuple[int, int, list[int]]], max_tokens: int) -> pb.Iteration:
        """Return an Iteration of (row, context length, tokens); context 0 admits a row with `max_tokens` slots."""
        iteration = pb.Iteration()
        for row, context, tokens in parts:
            blocks = [self.take_block() for _ in range(-(-max_tokens // BLOCK_SIZE))] if context == 0 else []
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

    def logits(self, iteration: pb.Iteration, every_token: bool = True) -> torch.Tensor:
        """Run one iteration over all partitions; return [S, vocabulary], or [K, vocabulary] of those that sample."""
        batch = self.rows.batch(iteration)
        last = None if every_token else batch.last

        def run(partitions: list[ModelPartition]) -> torch.Tensor:
            with torch.inference_mode():
                hidden = partitions[0].embed(batch.tokens, batch.ragged)
                for partition in partitions:
                    hidden = partition(hidden, batch.ragged, last if partition is partitions[-1] else None)
                return partitions[-1].logits(hidden)

        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return next(iter(pool.map(run, self.ranks)))
