"""What every model family gives: the facts of a model and the partition of it that a rank runs. Imports no torch.

A family is one file of this folder: the schema of its config.json (`ConfigFile`), the facts that follow from it and the
tensors of the checkpoint (`ModelConfig`), and the model (`ModelPartition`). The families' files import no torch either,
because the controller and `orca serve` check a model with them before they start ranks. So a partition gets its blocks
from `Parts` (parts.py), and computes with the methods of blocks and tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orca_worker.errors import ModelError
from orca_worker.rope import Rope

if TYPE_CHECKING:
    import torch
    from orca_kernels.interface import Kernels, RaggedBatch

    from orca_worker.intra_layer import IntraLayer
    from orca_worker.layers import PagedAttention
    from orca_worker.models.parts import Parts
    from orca_worker.rows import LastTokens

Named = tuple[str, tuple[int, ...]]
"""Name and shape of a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ABC):
    """What the families have in common, under Llama's names. Each family adds its own fields."""

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary_size: int
    max_positions: int
    norm_epsilon: float
    tied_head: bool
    rope: Rope | None = None
    """None if positions have weights."""
    dtype: str

    @abstractmethod
    def tensors(self, partition: int, num_partitions: int, stored: Container[str]) -> Iterator[Named]:
        """Yield the tensors that an inter-layer partition reads from a checkpoint with the `stored` names."""

    @abstractmethod
    def build(self, parts: Parts) -> ModelPartition:
        """Read the weights of a partition and return its model; raise ModelError."""

    @property
    def longest(self) -> int:
        """The longest sequence that `max_model_len` may ask for."""
        return self.rope.longest(self.max_positions) if self.rope else self.max_positions

    def layers_of(self, partition: int, num_partitions: int) -> range:
        """Layers of one inter-layer partition; the first ones take what is left over.

        The last partition has the head on top, so it is never among the larger ones.
        """
        share, rest = divmod(self.num_layers, num_partitions)
        first = partition * share + min(partition, rest)
        return range(first, first + share + (partition < rest))

    def check_fits(self, pipeline_parallel_size: int, tensor_parallel_size: int) -> None:
        """Raise ModelError, with the values that would fit."""
        if pipeline_parallel_size > self.num_layers:
            raise ModelError(
                f"pipeline-parallel-size {pipeline_parallel_size} does not fit: "
                f"the model has {self.num_layers} layers, so 1 to {self.num_layers} would"
            )
        if not self._divides(tensor_parallel_size):
            fitting = ", ".join(str(size) for size in range(1, self.num_heads + 1) if self._divides(size))
            raise ModelError(
                f"tensor-parallel-size {tensor_parallel_size} does not fit: {self.num_heads} heads, "
                f"{self.num_kv_heads} K/V heads and {self.intermediate_size} inner units must divide: {fitting} would"
            )

    def _divides(self, size: int) -> bool:
        """Return True if all dimensions can be split; K/V heads are copied where there are fewer of them than ranks."""
        kv_heads_fit = self.num_kv_heads % size == 0 or size % self.num_kv_heads == 0
        return self.num_heads % size == 0 and self.intermediate_size % size == 0 and kv_heads_fit


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """Which part of a model a rank builds, and with which kernels and ranks beside it."""

    partition: int
    num_partitions: int
    max_model_len: int
    kernels: Kernels
    device: torch.device
    ranks: IntraLayer

    @property
    def first(self) -> bool:
        """True if the partition has the embedding."""
        return self.partition == 0

    @property
    def last(self) -> bool:
        """True if the partition has the head."""
        return self.partition == self.num_partitions - 1


class ModelPartition(ABC):
    """Consecutive layers, with the embedding on the first partition and the head on the last."""

    def __init__(self, parts: Parts) -> None:
        self._attentions = parts.attentions

    def attentions(self) -> list[PagedAttention]:
        """Return the attention of each layer of the partition, in order: each needs pools."""
        return self._attentions

    @abstractmethod
    def embed(self, tokens: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """Return [S, H] for token ids [S]. First partition only."""

    @abstractmethod
    def __call__(self, hidden: torch.Tensor, batch: RaggedBatch, last: LastTokens | None) -> torch.Tensor:
        """Run the partition's layers over hidden [S, H] and return [S, H]; with `last`, only those rows [K, H].

        The last layer then computes only keys and values of the other tokens: nobody reads the rest.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits for hidden [rows, H] of the rows that sample. Last partition only.

        [rows, vocabulary] on rank 0, some of the columns on the others.
        """
