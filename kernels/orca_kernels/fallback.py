"""Operations of a model that a backend lacks and the reference computes, collected for a log line."""

from __future__ import annotations

from collections.abc import Callable

import torch

from orca_kernels.interface import Attention, AttentionForm, Kernels, LinearMap
from orca_kernels.quantization import INTEGER_ACTIVATIONS, QuantizedWeight
from orca_kernels.reference import ReferenceAttention, ReferenceKernels


class Operations:
    """The operations of `kernels`, looked up once per model; `missing` has the names that the reference computes."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.missing: set[str] = set()

    def operation(self, name: str) -> Callable[..., torch.Tensor]:
        """Return the operation `name` of `Kernels`."""
        if getattr(type(self.kernels), name, None) is getattr(ReferenceKernels, name):
            self._note(name)
        operation: Callable[..., torch.Tensor] = getattr(self.kernels, name)
        return operation

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """Return the attention of a layer."""
        attention = self.kernels.attention(form, dtype)
        if isinstance(attention, ReferenceAttention):
            self._note(" ".join([f"attention with head_dim {form.head_dim}", *sorted(form.options())]))
        return attention

    def quantized_linear(self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearMap:
        """Return a linear map over a quantised weight."""
        if weight.quantization not in self.kernels.quantized_products:
            self._note(
                "products of quantised weights and activations"
                if weight.quantization in INTEGER_ACTIVATIONS
                else "products of quantised weights (which are dequantised)"
            )
        return self.kernels.quantized_linear(weight, bias, dtype)

    def _note(self, name: str) -> None:
        if type(self.kernels) is not ReferenceKernels:  # for these `kernels_for` has logged a warning
            self.missing.add(name)
