"""`CudaKernels`: the CUDA kernels and cuBLAS behind `orca_kernels.interface.Kernels`.

The reference computes forms of attention that the sources do not support (other options or head dimensions).
"""

from __future__ import annotations

import ctypes
import math

import torch

from orca_kernels.cuda.arguments import integers
from orca_kernels.cuda.attention_library import AttentionLibrary
from orca_kernels.cuda.modules import (
    ROWS,
    TENSOR_CORES,
    Kernel,
    Launcher,
    attention_source,
    resident_blocks,
    rows_of_tile,
)
from orca_kernels.cuda.sampling import CudaSampling
from orca_kernels.cuda.work import Shape, WorkLists
from orca_kernels.interface import AnyPools, Attention, AttentionForm, LinearMap, RaggedBatch, block_pools
from orca_kernels.reference import ReferenceKernels, ReferenceLinear

ATTENTION_OPTIONS = frozenset({"window"})
"""Options of `AttentionForm` that the CUDA sources support."""
ROW_THREADS = 256
ATTENTION_THREADS = 128
MERGE_THREADS = 128
LOG2_E = 1 / math.log(2)
"""The attention kernels compute powers of two."""

WIDE = 16
"""Bytes that a thread of the row kernels and of the 16-bit attention reads at once."""

Real = ctypes.c_float


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
        self, launcher: Launcher, work_lists: WorkLists, source: str, form: AttentionForm, dtype: torch.dtype
    ) -> None:
        """`work_lists`: shared by all layers."""
        self._launcher = launcher
        self._work_lists = work_lists
        self._form = form
        self._tile_rows = rows_of_tile(source, form.head_dim)
        self._window = form.window or 0
        self._resident = resident_blocks(form.head_dim)
        self._scale = Real(form.scale * LOG2_E)
        self._attention = Kernel(source, "orca_attention", dtype, form.head_dim)
        self._merge = Kernel("merge.cu", "orca_merge", dtype, form.head_dim)
        if source == TENSOR_CORES:
            self._store = Kernel(source, "orca_store", dtype, form.head_dim)
        else:
            self._store = Kernel(ROWS, "orca_store", dtype)

    def new_pools(self, num_blocks: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device) -> AnyPools:
        """See Attention.new_pools."""
        return block_pools(self._form, num_blocks, num_kv_heads, dtype, device)

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        """See Attention.store."""
        rows, heads, dim = key.shape
        key, value = aligned(key), aligned(value)
        sizes = (heads,) if self._store.head_dim else (heads, dim)
        numbers = integers(*sizes, key.stride(0), value.stride(0))
        self._launcher.launch(self._store, (rows, 1, 1), ROW_THREADS, (key, value, *pools, slots, *numbers))

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        """See Attention: one launch for all requests, and one to merge the splits of contexts."""
        num_tokens, heads, dim = query.shape
        query = aligned(query)
        kv_heads = pools.keys.shape[1]
        shape = Shape(heads // kv_heads, kv_heads, self._tile_rows, self._window, self._resident)
        work = self._work_lists.of(batch, shape, self)
        output = torch.empty((num_tokens, heads, dim), dtype=query.dtype, device=query.device)
        parts = torch.empty((work.part_rows, kv_heads, dim + 2), dtype=torch.float32, device=query.device)
        numbers = integers(shape.heads, kv_heads, batch.block_table.shape[1], query.stride(0), self._window)
        tensors = (query, *pools, work.starts, work.contexts, batch.block_table, work.works, work.counts, output, parts)
        grid = (work.blocks, kv_heads, 1)
        self._launcher.launch(self._attention, grid, ATTENTION_THREADS, (*tensors, *numbers, self._scale))
        if len(work.merges):
            of_merge = (parts, work.starts, work.merges, work.counts, output, *integers(shape.heads, kv_heads))
            grid = (len(work.merges), kv_heads, work.merge_rows)
            self._launcher.launch(self._merge, grid, MERGE_THREADS, of_merge)
        return output


class CudaKernels(ReferenceKernels):
    """Implements `orca_kernels.interface.Kernels`."""

    def __init__(self, launcher: Launcher, name: str = "CUDA", library: AttentionLibrary | None = None) -> None:
        """`library`: computes the attention of the layers for which it has one."""
        self.name = self._own_name = name
        self.sampling = CudaSampling(launcher)
        """Sampling of tokens, which is no operation of a layer."""
        self._launcher = launcher
        self._library = library
        self._work_lists = WorkLists(launcher)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearMap:
        """See Kernels.linear."""
        return CudaLinear(weight, bias)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.layer_norm."""
        x = x.contiguous()
        y = torch.empty_like(x)
        arguments = (x, weight, bias, y, *integers(x.shape[-1]), Real(epsilon))
        self._rows("layer_norm", x, x.numel() // x.shape[-1], arguments)
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.rms_norm."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._rows("rms_norm", x, x.numel() // x.shape[-1], (x, weight, y, *integers(x.shape[-1]), Real(epsilon)))
        return y

    def silu_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Kernels.silu_and_multiply."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        y = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
        parts = -(-size * y.itemsize // (ROW_THREADS * WIDE))
        self._rows("silu_and_multiply", gate_up, rows, (gate_up, y, *integers(size)), parts)
        return y

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """See Kernels.rotate."""
        rows, heads, dim = x.shape
        arguments = (x, cosine, sine, *integers(heads, dim, x.stride(0)))
        self._rows("rotate", x, rows, arguments)
        return x

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """See Kernels.attention. Raises AttentionBackendError if the library is demanded and lacks the form."""
        if self._library is not None and (attention := self._library.attention(form, dtype)) is not None:
            self.name = f"{self._own_name}, attention by torch"
            return attention
        source = attention_source(dtype, form.head_dim)
        if source is None or not form.options() <= ATTENTION_OPTIONS:
            return super().attention(form, dtype)
        return CudaAttention(self._launcher, self._work_lists, source, form, dtype)

    def _rows(self, name: str, x: torch.Tensor, rows: int, arguments: tuple[object, ...], parts: int = 1) -> None:
        """Launch a kernel of rows.cu with `parts` thread blocks for each row."""
        self._launcher.launch(Kernel(ROWS, f"orca_{name}", x.dtype), (rows, parts, 1), ROW_THREADS, arguments)


def aligned(x: torch.Tensor) -> torch.Tensor:
    """Return heads [S, heads, D] whose rows begin at multiples of 16 bytes: x, or rarely a copy."""
    if x.data_ptr() % WIDE == 0 and x.stride(0) * x.itemsize % WIDE == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)
