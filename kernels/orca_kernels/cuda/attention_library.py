"""Which attention a model's layers have on a GPU: ORCA's kernels, torch's library (torch_attention.py), or FlashInfer's
(flashinfer_attention.py).

Until docs/benchmarks has a table with date and card, torch's is the default on the GPUs for which it is made: it
computes each form of attention there whose self-test passes. FlashInfer's is used on demand only, because no decode
graph can contain it. **Not yet run on a GPU.**
"""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

import torch
from orca_contract.model_choices import AttentionBackend

from orca_kernels.attention_self_test import SelfTestError, self_test_attention
from orca_kernels.cuda.flashinfer_attention import FlashInferSource
from orca_kernels.cuda.torch_attention import CAPABILITY, TorchSource, unload_varlen
from orca_kernels.interface import Attention, AttentionBackendError, AttentionForm

logger = logging.getLogger(__name__)


class AttentionChoice(NamedTuple):
    """The choice of a server, and the heads of its model on a rank, with which the library is tested."""

    backend: AttentionBackend
    num_heads: int
    num_kv_heads: int


class AttentionSource(Protocol):
    """The attentions of one library, untested."""

    name: str
    """As `AttentionBackend` has it."""

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """Return a new attention; raise AttentionBackendError if the library lacks the form or cannot be loaded."""

    def release(self) -> None:
        """Undo what loading the library has changed or allocated: no attention of it is used."""


class AttentionLibrary(Protocol):
    """Attentions that are not ORCA's own kernels."""

    name: str
    """See AttentionSource.name."""

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention | None:
        """Return the attention of a layer, None if ORCA's kernels are to compute it.

        Raises AttentionBackendError if the library is demanded and cannot compute it.
        """


class CheckedLibrary:
    """An `AttentionLibrary` that has every layer computed by a source. Raises AttentionBackendError where that fails.

    Each form is tested once. Of a failure the message is kept, not the error, whose traceback would keep the tensors of
    the self-test and FlashInfer's workspace.
    """

    def __init__(self, source: AttentionSource, choice: AttentionChoice, device: torch.device) -> None:
        self.name = source.name
        self._source = source
        self._heads = (choice.num_heads, choice.num_kv_heads)
        self._device = device
        self._passed: set[tuple[AttentionForm, torch.dtype]] = set()
        self._refused: dict[tuple[AttentionForm, torch.dtype], str] = {}

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """See AttentionLibrary."""
        kind = (form, dtype)
        if kind in self._refused:
            raise AttentionBackendError(self._refused[kind])
        if kind not in self._passed:
            try:
                self._test(form, dtype)
            except AttentionBackendError as error:
                self._refused[kind] = str(error)
                raise
            self._passed.add(kind)
        return self._source.attention(form, dtype)

    def _test(self, form: AttentionForm, dtype: torch.dtype) -> None:
        tried = self._source.attention(form, dtype)
        try:
            self_test_attention(tried, form, self._heads, dtype, self._device)
        except Exception as error:  # also of the library: an argument that it refuses, a kernel that it lacks
            if not self._passed:
                self._source.release()
            problem = f"the self-test of {self.name}'s attention failed"
            if isinstance(error, SelfTestError):
                raise AttentionBackendError(f"{problem}: {error}") from error
            raise AttentionBackendError.caused_by(problem, error) from error


class PreferredLibrary:
    """An `AttentionLibrary` that leaves to ORCA's kernels what another one refuses, with one log line per reason."""

    def __init__(self, library: AttentionLibrary) -> None:
        self.name = library.name
        self._library = library
        self._logged: set[str] = set()

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention | None:
        """See AttentionLibrary."""
        try:
            return self._library.attention(form, dtype)
        except AttentionBackendError as error:
            if str(error) not in self._logged:
                logger.warning("attention by ORCA's kernels, not by %s's library: %s", self.name, error)
            self._logged.add(str(error))
            return None


def attention_library(
    choice: AttentionChoice, capability: tuple[int, int], device: torch.device
) -> AttentionLibrary | None:
    """Return the library for a GPU, None if ORCA's kernels compute all layers.

    Raises AttentionBackendError if torch's is demanded, and made for other GPUs.
    """
    unload_varlen()  # that of a model which this process had before
    if choice.backend == "flashinfer":
        return CheckedLibrary(FlashInferSource(device), choice, device)
    suits = capability == CAPABILITY
    if choice.backend == "torch" and not suits:
        needed, present = (".".join(map(str, version)) for version in (CAPABILITY, capability))
        raise AttentionBackendError(f"FlashAttention-3 needs compute capability {needed}, this GPU has {present}")
    if choice.backend == "orca" or not suits:
        return None
    torchs = CheckedLibrary(TorchSource(), choice, device)
    return torchs if choice.backend == "torch" else PreferredLibrary(torchs)
