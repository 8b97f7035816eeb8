"""Which operations of a model a backend leaves to the reference, named for a log line."""

from __future__ import annotations

from collections.abc import Callable

import torch

from orca_kernels.interface import Attention, AttentionForm, Kernels
from orca_kernels.reference import ReferenceAttention, ReferenceKernels


class Operations:
    """The operations of `kernels`, chosen once for the lifetime of a model; `missing` names those of the reference."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.missing: set[str] = set()

    def operation(self, name: str) -> Callable[..., torch.Tensor]:
        """Return the operation of `Kernels` that has this name."""
        if getattr(type(self.kernels), name, None) is getattr(ReferenceKernels, name):
            self._note(name)
        chosen: Callable[..., torch.Tensor] = getattr(self.kernels, name)
        return chosen

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """Return the attention of a layer."""
        chosen = self.kernels.attention(form, dtype)
        if isinstance(chosen, ReferenceAttention):
            self._note(" ".join([f"attention with head_dim {form.head_dim}", *sorted(form.options())]))
        return chosen

    def _note(self, name: str) -> None:
        if type(self.kernels) is not ReferenceKernels:  # of which `kernels_for` has warned
            self.missing.add(name)
