"""`TorchAttention`: attention by torch's `varlen_attn` over a paged K/V cache, which FlashAttention-3 computes.

FlashAttention-3 runs on compute capability 9.0 only (Hopper) and takes pages of any size
(https://github.com/Dao-AILab/flash-attention/issues/1627), so a block of 16 slots is a page. FlashAttention-2, which
torch uses otherwise, is not used: it takes pages of a multiple of 256 slots
(https://github.com/Dao-AILab/flash-attention/issues/828), and in torch 2.13 it leaves out rows of a paged cache when it
splits contexts (https://github.com/pytorch/pytorch/issues/194167). **Not yet run on a GPU.**
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from orca_contract.kv_blocks import BLOCK_SIZE

from orca_kernels.cuda.work import on_host
from orca_kernels.device_copies import to_device
from orca_kernels.interface import AnyPools, AttentionBackendError, AttentionForm, PagePools, RaggedBatch

IMPLEMENTATION = "FA3"
"""Torch's name of FlashAttention-3, whose package has the module flash_attn_interface."""
CAPABILITY = (9, 0)
"""Compute capability that it needs."""
OPTIONS = frozenset({"window"})
"""Options of `AttentionForm` that `varlen_attn` has."""
DTYPES = (torch.bfloat16, torch.float16)
"""Element types of FlashAttention-3 besides fp8."""
MOST_HEAD_DIM, HEAD_DIM_MULTIPLE = 256, 8
WHOLE_CONTEXT = (-1, 0)
"""Window of a token that attends to all before it and to itself."""

Varlen = Callable[..., object]
"""`torch.nn.attention.varlen.varlen_attn_out`: writes to its first argument, so that the call allocates less."""


def load_varlen() -> Varlen:
    """Return torch's function after FlashAttention-3 has been activated; raise AttentionBackendError."""
    try:
        # With those of `unload_varlen`, so that nothing is activated that cannot be undone.
        from torch.nn.attention import (  # noqa: F401
            activate_flash_attention_impl,
            current_flash_attention_impl,
            restore_flash_attention_impl,
        )
    except ImportError as error:
        raise _too_old(error) from error
    try:
        activate_flash_attention_impl(IMPLEMENTATION)
    except Exception as error:  # of the package: an import, a symbol of another version of torch
        raise AttentionBackendError.caused_by("FlashAttention-3 cannot be activated", error) from error
    try:
        # Imports torch's compiler, which takes seconds, so only if the package is installed.
        from torch.nn.attention.varlen import varlen_attn_out
    except ImportError as error:
        unload_varlen()
        raise _too_old(error) from error
    return varlen_attn_out


def unload_varlen() -> None:
    """Leave torch's other functions the attention that they have without `load_varlen`."""
    try:
        from torch.nn.attention import current_flash_attention_impl, restore_flash_attention_impl
    except ImportError:
        return  # this torch cannot have activated FlashAttention-3: see load_varlen
    if current_flash_attention_impl() == IMPLEMENTATION:
        restore_flash_attention_impl()


def _too_old(error: ImportError) -> AttentionBackendError:
    return AttentionBackendError(f"torch {torch.__version__} has no varlen_attn over pages, 2.13 has: {error}")


def check_form(form: AttentionForm, dtype: torch.dtype) -> None:
    """Raise AttentionBackendError if the library does not compute a form for queries, keys and values of `dtype`."""
    if dtype not in DTYPES:
        name = str(dtype).removeprefix("torch.")
        raise AttentionBackendError(f"FlashAttention-3 computes bfloat16 and float16, not {name}")
    if form.head_dim % HEAD_DIM_MULTIPLE or form.head_dim > MOST_HEAD_DIM:
        raise AttentionBackendError(
            f"FlashAttention-3 needs a head dimension that is a multiple of {HEAD_DIM_MULTIPLE} up to {MOST_HEAD_DIM}, "
            f"not {form.head_dim}"
        )
    if missing := form.options() - OPTIONS:
        raise AttentionBackendError(f"torch's varlen_attn lacks {', '.join(sorted(missing))}")


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """The numbers of a batch in the library's form: int32 on the device."""

    starts: torch.Tensor
    """[R + 1]: the batch's query_start."""
    counts: torch.Tensor
    """[R]: tokens of each request in this iteration."""
    lengths: torch.Tensor
    """[R]: slots of each request, those of this iteration included."""
    table: torch.Tensor
    """[R, blocks of the longest request]."""
    most_tokens: int
    """Of a request in this iteration."""
    most_slots: int
    """Upper bound of `lengths`."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    owner: object
    batch: PagedBatch


class PagedBatches:
    """The numbers of the batches that exist, prepared once per run of the model and read by all layers."""

    def __init__(self) -> None:
        self._of_batch: WeakKeyDictionary[RaggedBatch, _Prepared] = WeakKeyDictionary()

    def of(self, batch: RaggedBatch, owner: object) -> PagedBatch:
        """Return the batch's numbers. `owner`: the layer that asks.

        The batch of a decode graph has other contexts in every run. So the layer that asked first, which is the first
        layer of a run, computes them anew on the device each time that it asks, as a part of the graph.
        """
        if (prepared := self._of_batch.get(batch)) is None:
            prepared = self._of_batch[batch] = _Prepared(owner, _numbers(batch))
        elif prepared.owner is owner and not on_host(batch):
            _refresh(prepared.batch, batch)
        return prepared.batch


def _numbers(batch: RaggedBatch) -> PagedBatch:
    counts = batch.query_start.diff()
    of_host = (batch.context_length + counts,) if on_host(batch) else ()
    parts = (part.to(torch.int32).numpy() for part in (batch.query_start, counts, *of_host))
    starts, on_device, *lengths = to_device(batch.slots.device, *parts)
    paged = PagedBatch(
        starts=starts,
        counts=on_device,
        lengths=lengths[0] if lengths else torch.empty_like(on_device),
        table=batch.block_table,
        most_tokens=int(counts.max()),
        most_slots=batch.block_table.shape[1] * BLOCK_SIZE,
    )
    if not lengths:
        _refresh(paged, batch)
    return paged


def _refresh(paged: PagedBatch, batch: RaggedBatch) -> None:
    torch.add(batch.context_length, paged.counts, out=paged.lengths)


class TorchAttention:
    """Implements `orca_kernels.interface.Attention` with `varlen`; see `check_form` for the forms."""

    recordable = True

    def __init__(self, varlen: Varlen, batches: PagedBatches, form: AttentionForm) -> None:
        """`batches`: shared by all layers."""
        self._varlen = varlen
        self._batches = batches
        self._form = form
        self._window = WHOLE_CONTEXT if form.window is None else (form.window - 1, 0)

    def new_pools(self, num_blocks: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device) -> AnyPools:
        """See Attention.new_pools."""
        return PagePools.zeros(num_blocks, num_kv_heads, self._form.head_dim, dtype, device)

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        """See Attention.store."""
        assert isinstance(pools, PagePools)
        pools.store(key, value, slots)

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        """See Attention: one call for all requests.

        The library chooses how contexts are split. One split would make rows independent of the batch, which
        `Kernels.fixed_order` of the CUDA kernels does not promise, and would leave most of a GPU idle in a long decode.
        """
        paged = self._batches.of(batch, self)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self._varlen(
            output,
            query,
            pools.keys,
            pools.values,
            paged.starts,
            None,  # FlashAttention-3 takes either starts of keys or a table of blocks
            paged.most_tokens,
            paged.most_slots,
            scale=self._form.scale,
            window_size=self._window,
            enable_gqa=query.shape[1] != pools.keys.shape[2],
            seqused_k=paged.lengths,
            block_table=paged.table,
            num_splits=None,
        )
        return output


class TorchSource:
    """An `AttentionSource` (attention_library.py) of torch's attention. `load`: tests replace it."""

    name = "torch"

    def __init__(self, load: Callable[[], Varlen] = load_varlen) -> None:
        self._load = load
        self._batches = PagedBatches()
        self._varlen: Varlen | None = None

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> TorchAttention:
        """See AttentionSource.attention."""
        check_form(form, dtype)
        if self._varlen is None:
            self._varlen = self._load()
        return TorchAttention(self._varlen, self._batches, form)

    def release(self) -> None:
        """See AttentionSource.release: torch's other functions get their own attention back."""
        unload_varlen()
        self._varlen = None
