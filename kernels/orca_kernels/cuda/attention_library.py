"""Which attention a model's layers have on a GPU: ORCA's kernels, or torch's library (torch_attention.py).

Until docs/benchmarks has a table with date and card, the library is the default on the GPUs for which it is made: it
computes each form of attention there whose self-test passes. **Not yet run on a GPU.**
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from orca_contract.model_choices import AttentionBackend

from orca_kernels.attention_self_test import SelfTestError, self_test_attention
from orca_kernels.cuda.torch_attention import (
    CAPABILITY,
    PagedBatches,
    TorchAttention,
    Varlen,
    check_form,
    load_varlen,
    one_line,
    unload_varlen,
)
from orca_kernels.interface import Attention, AttentionBackendError, AttentionForm

logger = logging.getLogger(__name__)


class AttentionChoice(NamedTuple):
    """The choice of a server, and the heads of its model on a rank, with which the library is tested."""

    backend: AttentionBackend
    num_heads: int
    num_kv_heads: int


class AttentionLibrary(Protocol):
    """Attentions that are not ORCA's own kernels."""

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention | None:
        """Return the attention of a layer, None if ORCA's kernels are to compute it.

        Raises AttentionBackendError if the library is demanded and cannot compute it.
        """


class TorchLibrary:
    """An `AttentionLibrary` that has every layer computed by torch. Raises AttentionBackendError where that fails.

    Each form is tested once. `load` returns torch's function; tests replace it.
    """

    def __init__(self, choice: AttentionChoice, device: torch.device, load: Callable[[], Varlen] = load_varlen) -> None:
        self._heads = (choice.num_heads, choice.num_kv_heads)
        self._device = device
        self._load = load
        self._batches = PagedBatches()
        self._passed: dict[tuple[AttentionForm, torch.dtype], Varlen] = {}
        self._refused: dict[tuple[AttentionForm, torch.dtype], AttentionBackendError] = {}

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """See AttentionLibrary."""
        kind = (form, dtype)
        if kind in self._refused:
            raise self._refused[kind]
        if kind not in self._passed:
            try:
                self._passed[kind] = self._tested(form, dtype)
            except AttentionBackendError as error:
                self._refused[kind] = error
                raise
        return TorchAttention(self._passed[kind], self._batches, form)

    def _tested(self, form: AttentionForm, dtype: torch.dtype) -> Varlen:
        check_form(form, dtype)
        varlen = self._load()
        try:
            tried = TorchAttention(varlen, PagedBatches(), form)
            self_test_attention(tried, form, self._heads, dtype, self._device)
        except Exception as error:  # also of the library: an argument that it refuses, a kernel that it lacks
            if not self._passed:
                unload_varlen()
            reason = str(error) if isinstance(error, SelfTestError) else one_line(error)
            raise AttentionBackendError(f"the self-test of torch's attention failed: {reason}") from error
        return varlen


class PreferredLibrary:
    """An `AttentionLibrary` that leaves to ORCA's kernels what another one refuses, with one log line per reason."""

    def __init__(self, library: AttentionLibrary) -> None:
        self._library = library
        self._logged: set[str] = set()

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention | None:
        """See AttentionLibrary."""
        try:
            return self._library.attention(form, dtype)
        except AttentionBackendError as error:
            if str(error) not in self._logged:
                logger.warning("attention by ORCA's kernels, not by torch's library: %s", error)
            self._logged.add(str(error))
            return None


def attention_library(
    choice: AttentionChoice, capability: tuple[int, int], device: torch.device
) -> AttentionLibrary | None:
    """Return the library for a GPU, None if ORCA's kernels compute all layers.

    Raises AttentionBackendError if torch's is demanded, and made for other GPUs.
    """
    unload_varlen()  # that of a model which this process had before
    suits = capability == CAPABILITY
    if choice.backend == "torch":
        if not suits:
            needed, present = (".".join(map(str, version)) for version in (CAPABILITY, capability))
            raise AttentionBackendError(f"FlashAttention-3 needs compute capability {needed}, this GPU has {present}")
        return TorchLibrary(choice, device)
    return PreferredLibrary(TorchLibrary(choice, device)) if choice.backend == "auto" and suits else None
