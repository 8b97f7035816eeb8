"""`CudaKernels`: the CUDA kernels and cuBLAS behind `orca_kernels.interface.Kernels`.

The reference computes forms of attention that the sources do not support (other options or head dimensions).
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from orca_contract.kv_blocks import BLOCK_SIZE

from orca_kernels.cuda.modules import TENSOR_CORES, Kernel, Launcher, attention_source, rows_of_tile
from orca_kernels.cuda.sampling import CudaSampling
from orca_kernels.interface import AnyPools, Attention, AttentionForm, LinearMap, RaggedBatch
from orca_kernels.reference import ReferenceKernels, ReferenceLinear

ATTENTION_OPTIONS = frozenset({"window"})
"""Options of `AttentionForm` that the CUDA sources support."""
ROW_THREADS = 256
ATTENTION_THREADS = 128
WARP = 32
SPLIT_SLOTS, MOST_SPLITS = 256, 16
"""Slots per split of a long context, and maximum number of splits; longer contexts have more slots per split."""

Index, Real = ctypes.c_longlong, ctypes.c_float


class _Requests(NamedTuple):
    """A batch on the device, divided into tiles for the attention kernels."""

    tiles: torch.Tensor
    """[tiles, 2] int32: request and first row of each tile."""
    starts: torch.Tensor
    """[R + 1] int64: the batch's query_start."""
    contexts: torch.Tensor
    """[R] int64: the batch's context_length."""
    increments: bool
    """True if a request has a single token (increment phase); the contexts of such requests are split."""


class CudaLinear(ReferenceLinear):
    """Implements `orca_kernels.interface.LinearMap` with cuBLAS."""

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap.add: cuBLAS accumulates to the residual, without another kernel."""
        if self._bias is not None:
            residual.add_(self._bias)
        return residual.addmm_(x, self._weight.t())


class CudaAttention:
    """Implements `orca_kernels.interface.Attention` with the attention kernels of `source`."""

    def __init__(
        self, launcher: Launcher, of_batch: WeakKeyDictionary[RaggedBatch, _Requests], source: str, form: AttentionForm
    ) -> None:
        """`of_batch`: cache of each batch's tiles, shared by all layers, which have the same heads."""
        self._launcher = launcher
        self._of_batch = of_batch
        self._source = source
        self._form = form

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        """See Attention.store."""
        rows, heads, dim = key.shape
        strides = (Index(key.stride(0)), Index(value.stride(0)))
        if self._source == TENSOR_CORES:
            kernel = Kernel(TENSOR_CORES, "orca_store", key.dtype, dim)
            self._launcher.launch(
                kernel, (rows, 1, 1), ROW_THREADS, (key, value, *pools, slots, Index(heads), *strides)
            )
        else:
            arguments = (key, value, *pools, slots, Index(heads), Index(dim), *strides)
            launch_rows(self._launcher, "store", key, rows, arguments)

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        """See Attention: one launch for all requests, and one to merge the splits of contexts."""
        num_tokens, heads, dim = query.shape
        kv_heads, table_width = pools.keys.shape[1], batch.block_table.shape[1]
        requests = self._requests_of(batch, heads // kv_heads, rows_of_tile(self._source, dim))
        starts, contexts = requests.starts, requests.contexts
        most_splits = min(-(-table_width * BLOCK_SIZE // SPLIT_SLOTS), MOST_SPLITS) if requests.increments else 1
        output = torch.empty((num_tokens, heads, dim), dtype=query.dtype, device=query.device)
        size = len(contexts) * heads * most_splits * (dim + 2) if most_splits > 1 else 0
        parts = torch.empty(size, dtype=torch.float32, device=query.device)
        arguments = (
            query, *pools, starts, contexts, batch.block_table, requests.tiles, output, parts,
            Index(heads), Index(kv_heads), Index(table_width), Index(query.stride(0)), Index(self._form.window or 0),
            Index(SPLIT_SLOTS), Index(most_splits), Real(self._form.scale),
        )  # fmt: skip
        grid = (len(requests.tiles), kv_heads, most_splits)
        kernel = Kernel(self._source, "orca_attention", query.dtype, dim)
        self._launcher.launch(kernel, grid, ATTENTION_THREADS, arguments)
        if most_splits > 1:
            numbers = (Index(heads), Index(self._form.window or 0), Index(SPLIT_SLOTS), Index(most_splits))
            merge = Kernel("merge.cu", "orca_merge", query.dtype, dim)
            self._launcher.launch(merge, (len(contexts), heads, 1), WARP, (parts, starts, contexts, output, *numbers))
        return output

    def _requests_of(self, batch: RaggedBatch, heads: int, rows: int) -> _Requests:
        """Divide the batch into tiles of `rows`; cached as long as the batch exists."""
        if batch not in self._of_batch:
            counts = np.diff(batch.query_start.numpy())
            numbers = -(-counts * heads // rows)
            request = np.repeat(np.arange(len(numbers)), numbers)
            place = np.arange(len(request)) - np.repeat(numbers.cumsum() - numbers, numbers)
            order = np.argsort(-place, kind="stable")  # longest first: no long tile starts last
            table = torch.from_numpy(np.stack((request, place * rows), axis=1)[order].astype(np.int32))
            tiles, starts, contexts = (
                tensor.to(batch.slots.device, non_blocking=True)
                for tensor in (table, batch.query_start, batch.context_length)
            )
            self._of_batch[batch] = _Requests(tiles, starts, contexts, bool((counts == 1).any()))
        return self._of_batch[batch]


class CudaKernels(ReferenceKernels):
    """Implements `orca_kernels.interface.Kernels`."""

    def __init__(self, launcher: Launcher, name: str = "CUDA") -> None:
        self.name = name
        self.sampling = CudaSampling(launcher)
        """Sampling of tokens, which is no operation of a layer."""
        self._launcher = launcher
        self._of_batch: WeakKeyDictionary[RaggedBatch, _Requests] = WeakKeyDictionary()

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearMap:
        """See Kernels.linear."""
        return CudaLinear(weight, bias)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.layer_norm."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._rows("layer_norm", x, x.numel() // x.shape[-1], (x, weight, bias, y, Index(x.shape[-1]), Real(epsilon)))
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.rms_norm."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._rows("rms_norm", x, x.numel() // x.shape[-1], (x, weight, y, Index(x.shape[-1]), Real(epsilon)))
        return y

    def silu_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Kernels.silu_and_multiply."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        y = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
        self._rows("silu_and_multiply", gate_up, rows, (gate_up, y, Index(size)), parts=-(-size // ROW_THREADS))
        return y

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """See Kernels.rotate."""
        rows, heads, dim = x.shape
        arguments = (x, cosine, sine, Index(heads), Index(dim), Index(x.stride(0)))
        self._rows("rotate", x, rows, arguments)
        return x

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """See Kernels.attention."""
        source = attention_source(dtype, form.head_dim)
        if source is None or not form.options() <= ATTENTION_OPTIONS:
            return super().attention(form, dtype)
        return CudaAttention(self._launcher, self._of_batch, source, form)

    def _rows(self, name: str, x: torch.Tensor, rows: int, arguments: tuple[object, ...], parts: int = 1) -> None:
        """See `launch_rows`."""
        launch_rows(self._launcher, name, x, rows, arguments, parts)


def launch_rows(
    launcher: Launcher, name: str, x: torch.Tensor, rows: int, arguments: tuple[object, ...], parts: int = 1
) -> None:
    """Launch a kernel of rows.cu with a thread block for each row, or for each of the row's parts."""
    kernel = Kernel("rows.cu", f"orca_{name}", x.dtype)
    launcher.launch(kernel, (rows, parts, 1), ROW_THREADS, arguments)
