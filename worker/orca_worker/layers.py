"""Building blocks of the models: linear maps, norms, embeddings, and attention over the K/V pools.

Each block reads its own weights from a `Scope` when it is made. All but `Attention` see the tokens of
the whole iteration as one [S, H] tensor, whichever requests they belong to (selective batching, the
paper, section 3.2).
"""

from __future__ import annotations

import torch
from orca_kernels.interface import Kernels, RaggedBatch
from torch import nn
from torch.nn import functional

from orca_worker.checkpoint import Scope


class Linear(nn.Module):
    """y = x W^T + b, for x [S, inputs] and y [S, outputs]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias

    @classmethod
    def read(cls, scope: Scope, inputs: int, outputs: int, bias: bool) -> Linear:
        """Reads `weight` [outputs, inputs] and, if there is one, `bias` [outputs]."""
        return cls(scope.read("weight", outputs, inputs), scope.read("bias", outputs) if bias else None)

    @classmethod
    def read_transposed(cls, scope: Scope, inputs: int, outputs: int) -> Linear:
        """Reads GPT-2's form: `weight` [inputs, outputs] and `bias` [outputs]."""
        return cls(scope.read("weight", inputs, outputs).t().contiguous(), scope.read("bias", outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [S, outputs]."""
        return functional.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """Rows of a table [entries, H]."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Returns [S, H] for indices [S]."""
        return functional.embedding(indices, self.weight)


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
    """Cosines and sines of the rotary embedding for every position, type `default`, in float32."""

    def __init__(self, theta: float, head_dim: int, max_positions: int, device: torch.device) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float() / head_dim
        angles = torch.outer(torch.arange(max_positions, device=device).float(), 1.0 / theta**exponents)
        angles = torch.cat((angles, angles), dim=-1)
        self._cosine, self._sine = angles.cos(), angles.sin()

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosine and sine [S, D] for positions [S]."""
        return self._cosine[positions].to(dtype), self._sine[positions].to(dtype)


class Attention(nn.Module):
    """Stores this iteration's keys and values in one layer's pools and attends over them.

    The only block that sees requests. `allocate` must have been called.
    """

    def __init__(self, num_kv_heads: int, head_dim: int, kernels: Kernels) -> None:
        super().__init__()
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.kernels = kernels
        self.key_pool = self.value_pool = torch.empty(0)

    def allocate(self, key_pool: torch.Tensor, value_pool: torch.Tensor) -> None:
        """Takes the layer's pools [B, 16, G, D]."""
        self.key_pool, self.value_pool = key_pool, value_pool

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """Returns [S, N x D] for query [S, N, D] and key, value [S, G, D]."""
        self.kernels.store(key, value, self.key_pool, self.value_pool, batch.slots)
        scale = self.head_dim**-0.5
        return self.kernels.attention(query, self.key_pool, self.value_pool, batch, scale).flatten(1)
