"""`Parts`: reads weights of a checkpoint below a name prefix and creates the blocks of a model; `build`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from orca_kernels import interface
from orca_kernels.fallback import Operations
from orca_kernels.interface import AttentionForm, LinearMap
from orca_kernels.quantization import W4A8, QuantizedWeight, quantize
from torch.nn import functional

from orca_worker.adapters import Adapters
from orca_worker.checkpoint import Checkpoint, Scope
from orca_worker.layers import (
    AdjacentMaps,
    Head,
    Norm,
    PagedAttention,
    Rotary,
    RowParallelLinear,
    VocabularyEmbedding,
)
from orca_worker.models.family import ModelConfig, ModelPartition, PartitionSpec
from orca_worker.quantized_checkpoints.reading import Weight, joined, read_weight
from orca_worker.quantized_checkpoints.weight_format import MapPart, WeightFormat
from orca_worker.rope import Rope
from orca_worker.stored_head import with_stored_head

logger = logging.getLogger(__name__)

ALL = slice(None)
Block = Callable[[torch.Tensor], torch.Tensor]
"""A function of rows [S, ...]."""
RmsNorm = Literal["rms_norm", "rms_norm_plus_one"]


def build(config: ModelConfig, checkpoint: Checkpoint, spec: PartitionSpec) -> ModelPartition:
    """Read the weights of one partition and return its model; raise ModelError.

    Logs one line if the kernels lack an operation of the model, which plain torch then computes.
    """
    if spec.last:
        config = with_stored_head(config, checkpoint)
    operations = Operations(spec.kernels)
    adapters = Adapters(spec.adapters, spec.kernels, checkpoint.dtype, spec.device, spec.adapters_change)
    model = config.build(Parts(Scope(checkpoint), spec, operations, [], config.weight_format, adapters))
    if operations.missing:
        logger.warning(
            "plain torch computes the operations that the kernels of device %s lack: %s",
            spec.device.type, ", ".join(sorted(operations.missing)),
        )  # fmt: skip
    return model


class Parts:
    """The tensors below a name prefix, `parts["attn"]["c_proj"]`, and constructors of the blocks that use them."""

    def __init__(
        self,
        scope: Scope,
        spec: PartitionSpec,
        operations: Operations,
        attentions: list[PagedAttention],
        weight_format: WeightFormat | None,
        adapters: Adapters,
    ) -> None:
        self.spec = spec
        self.group = spec.group
        self.attentions = attentions
        """Attentions of all layers created so far."""
        self._scope = scope
        self._operations = operations
        self._weight_format = weight_format
        self.adapters = adapters

    def __getitem__(self, name: str | int) -> Parts:
        return Parts(
            self._scope[name], self.spec, self._operations, self.attentions, self._weight_format, self.adapters
        )

    def __contains__(self, name: str) -> bool:
        return name in self._scope

    def operation(self, name: str) -> Callable[..., torch.Tensor]:
        """Return the operation `name` of `orca_kernels.interface.Kernels`."""
        return self._operations.operation(name)

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """Return a whole tensor."""
        return self._scope.read(name, *shape)

    def number(self, value: float) -> torch.Tensor:
        """Return `value`, rounded to the dtype of the weights and on their device, as a tensor []."""
        return self._scope.empty().fill_(value)

    def layer_norm(self, name: str, size: int, epsilon: float) -> Norm:
        """Return LayerNorm with weight and bias [size]."""
        weight, bias = self._scope[name].read("weight", size), self._scope[name].read("bias", size)
        return self._norm(interface.Norm("layer_norm", (weight, bias, epsilon)))

    def rms_norm(self, name: str, size: int, epsilon: float, operation: RmsNorm = "rms_norm") -> Norm:
        """Return a root mean square norm with weight [size]; `operation`: name of the kernels' operation."""
        return self._norm(interface.Norm(operation, (self._scope[name].read("weight", size), epsilon)))

    def _norm(self, norm: interface.Norm) -> Norm:
        return Norm(self.spec.kernels, self.operation(norm.operation), norm)

    def linear(self, inputs: int, bias: bool, *maps: tuple[str, int, slice]) -> LinearMap:
        """Read maps of the same input as one map; for each (name, outputs, part) the rows `part` of weight and bias."""
        modules = [(self._scope[name].name, outputs, part) for name, outputs, part in maps]
        return self.adapters.adapt(self._plain_linear(inputs, bias, *maps), modules, inputs, slice(0, inputs))

    def _plain_linear(self, inputs: int, bias: bool, *maps: tuple[str, int, slice]) -> LinearMap:
        scopes = [(self._scope[name], outputs, part) for name, outputs, part in maps]
        biases = [scope.read("bias", outputs, part=(part,)) for scope, outputs, part in scopes if bias]
        if any(self._is_quantized(scope) for scope, _, _ in scopes):
            return self._joined(
                [
                    self._quantized(MapPart(outputs, inputs, part, slice(0, inputs)), scope)
                    if self._is_quantized(scope)
                    else scope.read("weight", outputs, inputs, part=(part,))
                    for scope, outputs, part in scopes
                ],
                biases,
            )
        sizes = [len(range(*part.indices(outputs))) for _, outputs, part in scopes]
        weight = self._scope.empty(sum(sizes), inputs)
        # Map by map, to bound peak memory.
        for (scope, outputs, part), rows in zip(scopes, torch.split(weight, sizes), strict=True):
            rows.copy_(scope.read("weight", outputs, inputs, part=(part,)))
        return self._linear(weight, torch.cat(biases) if biases else None)

    def linear_transposed(self, name: str, inputs: int, outputs: int, parts: list[slice]) -> LinearMap:
        """Read columns `parts` of GPT-2's form: `weight` [inputs, outputs] and `bias` [outputs]."""
        modules = [(self._scope[name].name, outputs, part) for part in parts]
        base = self._plain_transposed(name, inputs, outputs, parts)
        return self.adapters.adapt(base, modules, inputs, slice(0, inputs))

    def _plain_transposed(self, name: str, inputs: int, outputs: int, parts: list[slice]) -> LinearMap:
        scope = self._scope[name]
        biases = [scope.read("bias", outputs, part=(part,)) for part in parts]
        if self._is_quantized(scope):
            of_parts = [MapPart(outputs, inputs, part, slice(0, inputs)) for part in parts]
            return self._joined([self._quantized(part, scope) for part in of_parts], biases)
        sizes = [len(bias) for bias in biases]
        weight = scope.empty(sum(sizes), inputs)
        for part, rows in zip(parts, torch.split(weight, sizes), strict=True):
            rows.copy_(scope.read("weight", inputs, outputs, part=(ALL, part)).t())
        return self._linear(weight, torch.cat(biases))

    def row_parallel(self, name: str, inputs: int, outputs: int, bias: bool) -> RowParallelLinear:
        """Read this rank's columns of `weight` [outputs, inputs] and, if there is one, `bias` [outputs]."""
        scope, part = self._scope[name], self.group.part(inputs)
        if self._is_quantized(scope):
            weight: Weight = self._quantized(MapPart(outputs, inputs, slice(0, outputs), part), scope)
        else:
            weight = scope.read("weight", outputs, inputs, part=(ALL, part)).contiguous()
        return self._row_parallel(weight, scope.read("bias", outputs) if bias else None, scope.name, inputs, outputs)

    def row_parallel_transposed(self, name: str, inputs: int, outputs: int) -> RowParallelLinear:
        """Read this rank's rows of GPT-2's form: `weight` [inputs, outputs], and `bias` [outputs]."""
        scope, part = self._scope[name], self.group.part(inputs)
        if self._is_quantized(scope):
            weight: Weight = self._quantized(MapPart(outputs, inputs, slice(0, outputs), part), scope)
        else:
            weight = scope.read("weight", inputs, outputs, part=(part,)).t().contiguous()
        return self._row_parallel(weight, scope.read("bias", outputs), scope.name, inputs, outputs)

    def _row_parallel(
        self, weight: Weight, bias: torch.Tensor | None, module: str, inputs: int, outputs: int
    ) -> RowParallelLinear:
        alone = self.group.size == 1
        linear_map = self._linear(weight, bias if alone else None)
        part = self.group.part(inputs)
        adapted = self.adapters.adapt(linear_map, [(module, outputs, slice(0, outputs))], inputs, part)
        return RowParallelLinear(adapted, None if alone else bias, self.group)

    def _is_quantized(self, scope: Scope) -> bool:
        """Return True if the checkpoint has the map of `scope` as integers."""
        return self._weight_format is not None and self._weight_format.marker in scope

    def _quantized(self, part: MapPart, scope: Scope) -> QuantizedWeight:
        assert self._weight_format is not None
        weight = read_weight(self._weight_format, scope, part)
        if self.spec.quantization != W4A8:  # which `WeightFormat.served_as` permits for weights of four bits only
            return weight
        return replace(weight, quantization=W4A8)

    def _joined(self, weights: list[Weight], biases: list[torch.Tensor]) -> LinearMap:
        """Prepare maps of the same input as one map, or side by side if their weights cannot be joined."""
        maps, first = [], 0
        for weight, count in joined(weights):
            maps.append(self._linear(weight, torch.cat(biases[first : first + count]) if biases else None))
            first += count
        return maps[0] if len(maps) == 1 else AdjacentMaps(maps)

    def _linear(self, weight: Weight, bias: torch.Tensor | None) -> LinearMap:
        """Quantise this rank's shard of a weight, if requested, and prepare its map.

        The plain weights of a quantised checkpoint stay plain.
        """
        if isinstance(weight, torch.Tensor):
            if self.spec.quantization == "none" or self._weight_format is not None:
                return self.spec.kernels.linear(weight, bias)
            weight = quantize(weight, self.spec.quantization)
        return self._operations.quantized_linear(weight, bias, self._scope.dtype)

    def embedding(self, name: str, entries: int, size: int) -> Block:
        """Return a function of indices [S] that returns their rows [S, size] of a table [entries, size]."""
        return partial(functional.embedding, weight=self._scope[name].read("weight", entries, size))

    def vocabulary_table(self, name: str, vocabulary: int, size: int) -> torch.Tensor:
        """Return this rank's rows of a table [vocabulary, size], for `vocabulary_embedding` and `head`."""
        return self._scope[name].read("weight", vocabulary, size, part=(self.group.part(vocabulary),))

    def vocabulary_embedding(self, table: torch.Tensor, vocabulary: int) -> VocabularyEmbedding:
        """Return the embedding of token ids."""
        return VocabularyEmbedding(table, self.group.part(vocabulary).start, self.group)

    def head(self, name: str, vocabulary: int, size: int, tied: torch.Tensor | None) -> Head:
        """Return the map to logits of the table `tied`, or of the map `name` if it is None.

        `--quantization` applies to it, and not to an embedding of the same table.
        """
        scope, part = self._scope[name], self.group.part(vocabulary)
        if tied is not None:
            weight: Weight = tied
        elif self._is_quantized(scope):
            weight = self._quantized(MapPart(vocabulary, size, part, slice(0, size)), scope)
        else:
            weight = self.vocabulary_table(name, vocabulary, size)
        linear = self._linear(weight, None)
        spec, likeliest = self.spec, None
        # A rank with some of the columns does not know the largest logits; integers have no smaller copy.
        finds = spec.finds_likeliest and self.group.size == 1
        if finds and isinstance(weight, torch.Tensor) and spec.quantization == "none":
            likeliest = spec.kernels.likeliest(weight, linear)
        return Head(linear, vocabulary, self.group, likeliest)

    def rotary(self, rope: Rope, head_dim: int) -> Rotary:
        """Return cosines and sines for every position of the longest sequence."""
        self.operation("rotate")  # of `PagedAttention.rotate_and_store`: noted if the reference computes it
        return Rotary(rope, head_dim, self.spec.max_model_len, self.spec.device)

    def attention(self, num_kv_heads: int, form: AttentionForm) -> PagedAttention:
        """Return the attention of the next layer, with `num_kv_heads` heads on this rank."""
        if self.spec.kv_cache_dtype == "int8":
            form = replace(form, kv_cache_dtype="int8")
        attention = self._operations.attention(form, self._scope.dtype)
        self.attentions.append(PagedAttention(num_kv_heads, attention, self.spec.kernels))
        return self.attentions[-1]
