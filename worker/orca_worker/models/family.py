"""Interface of a model family: the configuration of a model, and the partition that a rank runs. Imports no torch.

A family is one file of this folder: the schema of its config.json (`ConfigFile`), the configuration and the tensors of
the checkpoint (`ModelConfig`), and the model (`ModelPartition`). The families' files import no torch either, because
the controller and `orca serve` use them to check a model before they start ranks. So a partition gets its blocks from
`Parts` (parts.py), and computes only with methods of blocks and tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from orca_contract.model_choices import KvCacheDtype, Quantization

from orca_worker.errors import ModelError
from orca_worker.quantized_checkpoints.weight_format import MapPart, WeightFormat, errors_of
from orca_worker.rope import Rope
from orca_worker.weight_headers import FLOATS

if TYPE_CHECKING:
    import torch
    from orca_kernels.interface import Kernels, RaggedBatch

    from orca_worker.adapter_files import Adapter
    from orca_worker.layers import PagedAttention
    from orca_worker.models.parts import Parts
    from orca_worker.rows import LastTokens
    from orca_worker.tensor_parallel_group import TensorParallelGroup

HEAD = "lm_head.weight"
Named = tuple[str, tuple[int, ...]]
"""Name and shape of a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ABC):
    """Common fields of all families, under Llama's names. Each family adds its own fields."""

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
    """None if position embeddings are weights."""
    dtype: str
    weight_format: WeightFormat | None = None
    """How the checkpoint stores quantised weights; None: they are not quantised."""
    embeds_only: bool = False
    """True if the checkpoint is that of the model without a head. The head is then tied, and only tried."""
    tables: ClassVar[frozenset[str]] = frozenset()
    """Last names of the matrices that are no linear maps."""
    row_parallel: ClassVar[frozenset[str]] = frozenset()
    """Last names of the linear maps whose inputs are spread over the ranks."""
    transposed: ClassVar[bool] = False
    """True if the weights of the layers' linear maps are stored as [inputs, outputs]."""

    @abstractmethod
    def tensors(self, partition: int, num_partitions: int, stored: Container[str]) -> Iterator[Named]:
        """Yield the tensors that an inter-layer partition reads; `stored`: names of the checkpoint's tensors."""

    @abstractmethod
    def build(self, parts: Parts) -> ModelPartition:
        """Read the weights of a partition and return its model; raise ModelError."""

    def table(self, name: str, stored: Container[str] | Parts) -> str:
        """Return the module of the embedding `name`: the head if a tied checkpoint has the values only there.

        safetensors' `save_model` and accelerate keep the first of the names of one tensor, which is the head's.
        """
        return "lm_head" if self.tied_head and f"{name}.weight" not in stored and HEAD in stored else name

    def stored_tensors(
        self, partition: int, num_partitions: int, tensor_parallel_size: int, stored: Container[str]
    ) -> Iterator[tuple[str, tuple[int, ...], Collection[str]]]:
        """Yield `tensors` with their dtypes in the file, and those of the weight format instead of quantised weights.

        Raises ModelError, with the map's name, if the format cannot store a map or tensor parallelism cannot divide it.
        """
        for name, shape in self.tensors(partition, num_partitions, stored):
            scope, _, kind = name.rpartition(".")
            last, weight_format = scope.rpartition(".")[2], self.weight_format
            is_map = kind == "weight" and len(shape) == 2 and last not in self.tables
            if not is_map or weight_format is None or f"{scope}.{weight_format.marker}" not in stored:
                yield name, shape, FLOATS
                continue
            outputs, inputs = shape[::-1] if self.transposed and scope != "lm_head" else shape
            with errors_of(f"map {scope}"):
                if last in self.row_parallel:
                    weight_format.check_tensor_parallel(inputs, tensor_parallel_size)
                whole = MapPart.whole(outputs, inputs)
                names = {name for name in weight_format.optional if f"{scope}.{name}" in stored}
                for tensor in weight_format.tensors(whole, names):
                    yield f"{scope}.{tensor.name}", tensor.shape, tensor.dtypes

    @property
    def finds_likeliest(self) -> bool:
        """True if the largest output of the head is a greedy token."""
        return not self.embeds_only

    @property
    def longest(self) -> int:
        """Upper bound of `max_model_len`."""
        return self.rope.longest(self.max_positions) if self.rope else self.max_positions

    def check_length(self, max_model_len: int) -> None:
        """Raise ModelError if sequences of `max_model_len` tokens have more positions than the model."""
        if max_model_len > self.longest:
            raise ModelError(f"max-model-len {max_model_len} exceeds the model's {self.longest} positions")

    def layers_of(self, partition: int, num_partitions: int) -> range:
        """Return the layers of one inter-layer partition, divided evenly; the first ones get one more.

        The last partition, which also has the head, is never among the larger ones.
        """
        size, rest = divmod(self.num_layers, num_partitions)
        first = partition * size + min(partition, rest)
        return range(first, first + size + (partition < rest))

    def check_fits(self, pipeline_parallel_size: int, tensor_parallel_size: int) -> None:
        """Raise ModelError with the possible values if a size does not fit."""
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
        if tensor_parallel_size > self.vocabulary_size:  # each rank has the embeddings of a part of the tokens
            raise ModelError(
                f"tensor-parallel-size {tensor_parallel_size} does not fit: "
                f"the model has {self.vocabulary_size} tokens, fewer than ranks"
            )

    def _divides(self, size: int) -> bool:
        """Return True if all dimensions can be split; K/V heads are replicated if there are fewer heads than ranks."""
        kv_heads_fit = self.num_kv_heads % size == 0 or size % self.num_kv_heads == 0
        return self.num_heads % size == 0 and self.intermediate_size % size == 0 and kv_heads_fit


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The part of a model that a rank builds, its kernels and its tensor-parallel group."""

    partition: int
    num_partitions: int
    max_model_len: int
    kernels: Kernels
    device: torch.device
    group: TensorParallelGroup
    quantization: Quantization = "none"
    """Of the weights of linear maps, when they are read."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of cached keys and values."""
    adapters: Sequence[Adapter] = ()
    """Of the model's linear maps."""
    adapters_change: bool = False
    """True if others are loaded and removed while the model runs."""
    finds_likeliest: bool = False
    """See ModelConfig; True makes the head's search, which takes memory."""

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

    final_norm: Callable[[torch.Tensor], torch.Tensor]
    """The norm of rows [rows, H] before the head. Last partition only."""

    def __init__(self, parts: Parts) -> None:
        self.spec = parts.spec
        """Place of the partition, and how it computes."""
        self._attentions = parts.attentions
        self.adapters = parts.adapters.active
        """Which rows use which adapter: set before the layers are computed."""
        self.adapted_maps = parts.adapters
        """Where adapters are added and removed, if they change."""

    def attentions(self) -> list[PagedAttention]:
        """Return the attentions of the partition's layers, in order; each needs pools."""
        return self._attentions

    @abstractmethod
    def embed(self, tokens: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """Return [S, H] for token ids [S]. First partition only."""

    @abstractmethod
    def __call__(self, hidden: torch.Tensor, batch: RaggedBatch, last: LastTokens | None) -> torch.Tensor:
        """Run the partition's layers over hidden [S, H]; return [S, H], or [K, H] for the `last` tokens only.

        With `last`, the last layer computes only keys and values for the other tokens.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits for hidden [rows, H] of the rows that sample. Last partition only.

        [rows, vocabulary] on rank 0, some of the columns on other ranks.
        """

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return the tokens int64 [rows] with the largest `logits`, of equal ones the first; None: compute the logits.

        Last partition only.
        """
        return None
