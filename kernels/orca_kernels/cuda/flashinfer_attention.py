"""`FlashInferAttention`: attention by FlashInfer's wrapper of ragged batches over a paged K/V cache.

FlashInfer (PyPI package flashinfer-python) is not installed with ORCA. Its `BatchPrefillWithPagedKVCacheWrapper` takes
pages of any size, so a block of 16 slots is a page, and chunks and increments in one call. Before the first layer of an
iteration `plan` lists the work of a batch on the host, which a CUDA graph cannot contain: decode iterations are not
recorded. **Not yet run on a GPU.**
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from orca_contract.kv_blocks import BLOCK_SIZE

from orca_kernels.device_copies import to_device
from orca_kernels.interface import AnyPools, AttentionBackendError, AttentionForm, PagePools, RaggedBatch

LEAST_VERSION = (0, 7, 2)
"""Version whose source these calls follow. Partial results of older ones may exceed the workspace."""
OPTIONS = frozenset({"window", "softcap"})
"""Options of `AttentionForm` that the wrapper has."""
DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128, 256)
"""Head dimensions for which FlashInfer's kernels are built."""
WORKSPACE_BYTES = 128 << 20
"""Memory for the partial results of split contexts, of the size that FlashInfer recommends.

Its planner makes at most two splits per multiprocessor, each of at most 128 rows of float32: 35 MB on 132
multiprocessors with a head dimension of 256.
"""
WHOLE_CONTEXT = -1
"""Window of a token that attends to all before it and to itself."""


class Wrapper(Protocol):
    """Methods of `flashinfer.BatchPrefillWithPagedKVCacheWrapper` that are used."""

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        """List the work of a batch: numbers are int32, on the host but for the indices.

        `window_left`: positions before its own that a token attends to, WHOLE_CONTEXT for all.
        """

    def run(
        self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor], *, out: torch.Tensor
    ) -> torch.Tensor:
        """Write the attention [S, N, D] of the planned batch to `out` and return it."""


class Event(Protocol):
    """Methods of `torch.cuda.Event` that are used."""

    def record(self) -> None:
        """Mark the end of the device's work so far."""

    def synchronize(self) -> None:
        """Wait until the device has reached the mark; return at once if there is none."""


NewWrapper = Callable[[torch.Tensor, str], Wrapper]
"""Makes a wrapper over a workspace, for a layout of pages."""
NewEvent = Callable[[], Event]


def load_wrapper() -> NewWrapper:
    """Return FlashInfer's class; raise AttentionBackendError if it is not installed, too old or not usable."""
    try:
        package = importlib.import_module("flashinfer")
        version, new_wrapper = str(package.__version__), package.BatchPrefillWithPagedKVCacheWrapper
    except Exception as error:  # of the package: an import, a library that it cannot load
        raise AttentionBackendError.caused_by(
            "FlashInfer (package flashinfer-python) cannot be imported", error
        ) from error
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise AttentionBackendError(f"FlashInfer {version} is installed, {least} or later is needed")
    return cast("NewWrapper", new_wrapper)


def check_form(form: AttentionForm, dtype: torch.dtype) -> None:
    """Raise AttentionBackendError if FlashInfer does not compute a form for queries, keys and values of `dtype`."""
    if dtype not in DTYPES:
        name = str(dtype).removeprefix("torch.")
        raise AttentionBackendError(f"FlashInfer computes bfloat16 and float16, not {name}")
    if form.head_dim not in HEAD_DIMS:
        known = ", ".join(map(str, HEAD_DIMS))
        raise AttentionBackendError(f"FlashInfer has head dimensions {known}, not {form.head_dim}")
    if missing := form.options() - OPTIONS:
        raise AttentionBackendError(f"FlashInfer lacks {', '.join(sorted(missing))}")


@dataclass(frozen=True, slots=True)
class PageLists:
    """The numbers of a batch in FlashInfer's form, int32."""

    starts: torch.Tensor
    """[R + 1] on the host: the batch's query_start."""
    page_starts: torch.Tensor
    """[R + 1] on the host: index of each request's first page in `pages`, then the number of pages."""
    pages: torch.Tensor
    """[pages of all requests] on the device: block ids, by request and position."""
    last_slots: torch.Tensor
    """[R] on the host: filled slots of each request's last page, 1 to 16, those of this iteration included."""


def page_lists(batch: RaggedBatch) -> PageLists:
    """Return the numbers of a batch whose contexts the host has. One copy to the device, and no wait for it."""
    lengths = batch.context_length + batch.query_start.diff()
    counts = (lengths + BLOCK_SIZE - 1) // BLOCK_SIZE
    page_starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    requests, width = batch.block_table.shape
    # Index in the flattened table of each page: its index among all pages, and what rows leave free before it.
    shift = torch.arange(requests) * width - page_starts[:-1]
    index = (torch.arange(int(page_starts[-1])) + shift.repeat_interleave(counts)).to(torch.int32)
    (index,) = to_device(batch.block_table.device, index.numpy())
    return PageLists(
        starts=batch.query_start.to(torch.int32),
        page_starts=page_starts.to(torch.int32),
        pages=batch.block_table.flatten().index_select(0, index),
        last_slots=(lengths - (counts - 1) * BLOCK_SIZE).to(torch.int32),
    )


class Shape(NamedTuple):
    """What a plan depends on besides the batch."""

    form: AttentionForm
    num_heads: int
    num_kv_heads: int
    dtype: torch.dtype


@dataclass(slots=True)
class _Planned:
    wrapper: Wrapper
    copied: Event
    """Reached when the device has copied the last plan from the wrapper's memory on the host."""
    batch: ReferenceType[RaggedBatch] | None = None


class Plans:
    """Wrappers on a device, one per shape; each is planned once per batch, and all layers of the shape run it.

    Their launches are on one stream, so they share a workspace.
    """

    def __init__(self, new_wrapper: NewWrapper, device: torch.device, new_event: NewEvent) -> None:
        self._new_wrapper = new_wrapper
        self._new_event = new_event
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._of_shape: dict[Shape, _Planned] = {}
        self._of_batch: WeakKeyDictionary[RaggedBatch, PageLists] = WeakKeyDictionary()

    def of(self, batch: RaggedBatch, shape: Shape) -> Wrapper:
        """Return a wrapper that is planned for the batch."""
        if shape not in self._of_shape:
            self._of_shape[shape] = _Planned(self._new_wrapper(self._workspace, "NHD"), self._new_event())
        planned = self._of_shape[shape]
        if planned.batch is None or planned.batch() is not batch:
            # The host may run ahead of the device, but not so far that it overwrites a plan before it is copied. The
            # copy is in front of an iteration's work, so the device has begun the previous iteration.
            planned.copied.synchronize()
            self._plan(planned.wrapper, batch, shape)
            planned.copied.record()
            planned.batch = ref(batch)
        return planned.wrapper

    def _plan(self, wrapper: Wrapper, batch: RaggedBatch, shape: Shape) -> None:
        if (numbers := self._of_batch.get(batch)) is None:
            numbers = self._of_batch[batch] = page_lists(batch)
        form = shape.form
        wrapper.plan(
            numbers.starts,
            numbers.page_starts,
            numbers.pages,
            numbers.last_slots,
            shape.num_heads,
            shape.num_kv_heads,
            form.head_dim,
            BLOCK_SIZE,
            causal=True,
            sm_scale=form.scale,
            window_left=WHOLE_CONTEXT if form.window is None else form.window - 1,
            logits_soft_cap=form.softcap,
            q_data_type=shape.dtype,
            kv_data_type=shape.dtype,
        )


class FlashInferAttention:
    """Implements `orca_kernels.interface.Attention` with `plans`; see `check_form` for the forms."""

    recordable = False

    def __init__(self, plans: Plans, form: AttentionForm) -> None:
        """`plans`: shared by all layers."""
        self._plans = plans
        self._form = form

    def new_pools(self, num_blocks: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device) -> AnyPools:
        """See Attention.new_pools."""
        return PagePools.zeros(num_blocks, num_kv_heads, self._form.head_dim, dtype, device)

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        """See Attention.store."""
        assert isinstance(pools, PagePools)
        pools.store(key, value, slots)

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        """See Attention: one call for all requests. The library chooses how contexts are split."""
        shape = Shape(self._form, query.shape[1], pools.keys.shape[2], query.dtype)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        return self._plans.of(batch, shape).run(query, (pools.keys, pools.values), out=output)


class FlashInferSource:
    """An `AttentionSource` (attention_library.py) of FlashInfer's attention.

    `load` and `new_event`: tests replace them.
    """

    name = "flashinfer"

    def __init__(
        self,
        device: torch.device,
        load: Callable[[], NewWrapper] = load_wrapper,
        new_event: NewEvent = torch.cuda.Event,
    ) -> None:
        self._device = device
        self._load = load
        self._new_event = new_event
        self._plans: Plans | None = None

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> FlashInferAttention:
        """See AttentionSource.attention."""
        check_form(form, dtype)
        if self._plans is None:
            self._plans = Plans(self._load(), self._device, self._new_event)
        return FlashInferAttention(self._plans, form)

    def release(self) -> None:
        """See AttentionSource.release: free the workspace."""
        self._plans = None
