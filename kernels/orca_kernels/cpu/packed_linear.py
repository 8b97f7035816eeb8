"""`PackedLinear`: matrix products by oneDNN, over a weight that is reordered once."""

from __future__ import annotations

from collections.abc import Callable

import torch


class PackedLinear:
    """A `LinearMap` whose weight is reordered once for oneDNN; the original is released.

    The operators are internal to torch (its compiler emits them): tests/kernels checks them, and `ReferenceLinear`
    replaces them if torch lacks them.
    """

    fuses_add = True

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias
        self._pointwise: Callable[..., torch.Tensor] = torch.ops.mkldnn._linear_pointwise.default
        self._binary: Callable[..., torch.Tensor] = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._pointwise(x, self._weight, self._bias, "none", [], "")

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._pointwise(x, self._weight, self._bias, "gelu", [], "tanh")

    def with_gelu_tanh(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See LinearMap: two products."""
        return self(x), self.gelu_tanh(x)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._binary(x, residual, self._weight, self._bias, "add")


def packs(dtype: torch.dtype) -> bool:
    """Return True if torch has the packed product and supports the element type on this processor."""
    operators = torch.ops.mkldnn
    if not hasattr(operators, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or bool(operators._is_mkldnn_bf16_supported())
