"""Building blocks of the models: linear maps, norms, embeddings, and attention over the K/V pools.

Each block reads its own weights from a `Scope` when it is made. All but `Attention` see the tokens of
the whole iteration as one [S, H] tensor, whichever requests they belong to (selective batching, the
paper, section 3.2).
"""

from __future__ import annotations

import torch
from orca_kernels.interface import Kernels, Pools, RaggedBatch
from torch import nn
from torch.nn import functional

from orca_worker.checkpoint import Scope
from orca_worker.intra_layer import IntraLayer
from orca_worker.rope import Rope, inverse_frequencies

ALL = slice(None)


class Linear(nn.Module):
    """y = x W^T + b, for x [S, inputs] and y [S, outputs]; column-parallel if it holds some of the outputs."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels) -> None:
        super().__init__()
        self.map = kernels.linear(weight, bias)

    @classmethod
    def read(cls, kernels: Kernels, inputs: int, bias: bool, *maps: tuple[Scope, int, slice]) -> Linear:
        """Reads maps of the same input as one: rows `part` of each scope's `weight` [outputs, inputs] and `bias`."""
        biases = [scope.read("bias", outputs, part=(part,)) for scope, outputs, part in maps if bias]
        sizes = [len(range(*part.indices(outputs))) for _, outputs, part in maps]
        weight = maps[0][0].empty(sum(sizes), inputs)
        # One after the other: never all of them beside the whole.
        for (scope, outputs, part), rows in zip(maps, torch.split(weight, sizes), strict=True):
            rows.copy_(scope.read("weight", outputs, inputs, part=(part,)))
        return cls(weight, torch.cat(biases) if biases else None, kernels)

    @classmethod
    def read_transposed(cls, kernels: Kernels, scope: Scope, inputs: int, outputs: int, parts: list[slice]) -> Linear:
        """Reads columns `parts` of GPT-2's form: `weight` [inputs, outputs] and `bias` [outputs]."""
        biases = [scope.read("bias", outputs, part=(part,)) for part in parts]
        sizes = [len(bias) for bias in biases]
        weight = scope.empty(sum(sizes), inputs)
        for part, rows in zip(parts, torch.split(weight, sizes), strict=True):
            rows.copy_(scope.read("weight", inputs, outputs, part=(ALL, part)).t())
        return cls(weight, torch.cat(biases), kernels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [S, outputs]."""
        return self.map(x)


class GeluLinear(Linear):
    """GeLU (tanh approximation) after a linear map."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [S, outputs]."""
        return self.map.gelu_tanh(x)


class RowParallelLinear(nn.Module):
    """residual + x W^T + b where each rank holds some of the inputs; the ranks' parts are summed."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, ranks: IntraLayer) -> None:
        super().__init__()
        alone = ranks.size == 1
        self.map = kernels.linear(weight, bias if alone else None)
        self.bias = None if alone else bias
        self.ranks = ranks

    @classmethod
    def read(
        cls, kernels: Kernels, scope: Scope, inputs: int, outputs: int, bias: bool, ranks: IntraLayer
    ) -> RowParallelLinear:
        """Reads this rank's columns of `weight` [outputs, inputs] and, if there is one, `bias` [outputs]."""
        weight = scope.read("weight", outputs, inputs, part=(ALL, ranks.part(inputs))).contiguous()
        return cls(weight, scope.read("bias", outputs) if bias else None, kernels, ranks)

    @classmethod
    def read_transposed(
        cls, kernels: Kernels, scope: Scope, inputs: int, outputs: int, ranks: IntraLayer
    ) -> RowParallelLinear:
        """Reads this rank's rows of GPT-2's form: `weight` [inputs, outputs], and `bias` [outputs]."""
        weight = scope.read("weight", inputs, outputs, part=(ranks.part(inputs),)).t().contiguous()
        return cls(weight, scope.read("bias", outputs), kernels, ranks)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Returns [S, outputs], the same on every rank."""
        if self.ranks.size == 1:
            return self.map.add(x, residual)
        y = self.ranks.sum(self.map(x))
        return residual + (y if self.bias is None else y + self.bias)


class Embedding(nn.Module):
    """Rows of a table [entries, H]."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Returns [S, H] for indices [S]."""
        return functional.embedding(indices, self.weight)


class VocabularyEmbedding(nn.Module):
    """Token embedding whose rows are spread over the ranks."""

    def __init__(self, weight: torch.Tensor, vocabulary: int, ranks: IntraLayer) -> None:
        super().__init__()
        self.weight = weight
        self.first = ranks.part(vocabulary).start
        self.ranks = ranks

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns [S, H] for token ids [S], the same on every rank."""
        if self.ranks.size == 1:
            return functional.embedding(tokens, self.weight)
        local = tokens - self.first
        elsewhere = (local < 0) | (local >= len(self.weight))
        embedded = functional.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.ranks.sum(embedded.masked_fill(elsewhere.unsqueeze(1), 0))


class Head(Linear):
    """Logits; the vocabulary is spread over the ranks and gathered to rank 0."""

    def __init__(self, weight: torch.Tensor, vocabulary: int, kernels: Kernels, ranks: IntraLayer) -> None:
        super().__init__(weight, None, kernels)
        self.vocabulary = vocabulary
        self.ranks = ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [rows, vocabulary] on rank 0, this rank's columns on the others."""
        return self.ranks.gather_columns(super().forward(x), self.vocabulary)


class LayerNorm(nn.Module):
    """LayerNorm with weight and bias."""

    def __init__(self, scope: Scope, size: int, epsilon: float, kernels: Kernels) -> None:
        super().__init__()
        self.weight, self.bias = scope.read("weight", size), scope.read("bias", size)
        self.epsilon = epsilon
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x [S, H] normalised."""
        return self.kernels.layer_norm(x, self.weight, self.bias, self.epsilon)


class RmsNorm(nn.Module):
    """Root mean square norm with weight."""

    def __init__(self, scope: Scope, size: int, epsilon: float, kernels: Kernels) -> None:
        super().__init__()
        self.weight = scope.read("weight", size)
        self.epsilon = epsilon
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x [S, H] normalised."""
        return self.kernels.rms_norm(x, self.weight, self.epsilon)


class Rotary:
    """Cosines and sines of the rotary embedding for every position, computed in float32."""

    def __init__(self, rope: Rope, head_dim: int, max_model_len: int, device: torch.device) -> None:
        frequencies, factor = inverse_frequencies(rope, head_dim, max_model_len, device)
        angles = torch.outer(torch.arange(max_model_len, device=device).float(), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self._cosine, self._sine = angles.cos() * factor, angles.sin() * factor

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosine and sine [S, D] in float32 for positions [S]."""
        return self._cosine[positions], self._sine[positions]


class Attention(nn.Module):
    """Stores this iteration's keys and values in one layer's pools and attends over them.

    The only block that sees requests. `allocate` must have been called.
    """

    def __init__(self, num_kv_heads: int, head_dim: int, window: int | None, kernels: Kernels) -> None:
        super().__init__()
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.window = window
        self.kernels = kernels
        self.pools = Pools(torch.empty(0), torch.empty(0))

    def allocate(self, pools: Pools) -> None:
        """Takes the layer's pools."""
        self.pools = pools

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """Returns [S, N x D] for query [S, N, D] and key, value [S, G, D]."""
        self.kernels.store(key, value, self.pools, batch.slots)
        scale = self.head_dim**-0.5
        return self.kernels.attention(query, self.pools, batch, scale, self.window).flatten(1)
