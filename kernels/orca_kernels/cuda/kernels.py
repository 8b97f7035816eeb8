"""`CudaKernels`: the CUDA kernels and cuBLAS behind `orca_kernels.interface.Kernels`.

The reference computes forms of attention that the sources do not support (other options or head dimensions).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch

from orca_kernels.cuda.arguments import integers
from orca_kernels.cuda.attention_library import AttentionLibrary
from orca_kernels.cuda.modules import (
    ROWS,
    Kernel,
    Launcher,
    attention_source,
    resident_blocks,
    rows_of_tile,
)
from orca_kernels.cuda.sampling import CudaSampling
from orca_kernels.cuda.work import Shape, WorkLists
from orca_kernels.interface import (
    AnyPools,
    Attention,
    AttentionForm,
    LinearMap,
    Norm,
    RaggedBatch,
    Rotation,
    block_pools,
)
from orca_kernels.reference import ReferenceKernels, ReferenceLinear, query_and_key

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
NOTHING = ctypes.c_longlong(0)
"""A null pointer."""


class CudaLinear(ReferenceLinear):
    """Implements `orca_kernels.interface.LinearMap` with cuBLAS."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self.fuses_add = bias is None

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap.add: cuBLAS accumulates to the residual, after a kernel that adds a bias."""
        if self._bias is not None:
            residual.add_(self._bias)
        return residual.addmm_(x, self._weight.t())


class CudaAttention:
    """Implements `orca_kernels.interface.Attention` with the attention kernels of `source`."""

    recordable = True

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
        self._store = Kernel(source, "orca_store", dtype, form.head_dim)
        self._rotate_and_store = Kernel(source, "orca_rotate_and_store", dtype, form.head_dim)

    def new_pools(self, num_blocks: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device) -> AnyPools:
        """See Attention.new_pools."""
        return block_pools(self._form, num_blocks, num_kv_heads, dtype, device)

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        """See Attention.store."""
        rows, heads, _ = key.shape
        key, value = aligned(key), aligned(value)
        numbers = integers(heads, key.stride(0), value.stride(0))
        self._launcher.launch(self._store, (rows, 1, 1), ROW_THREADS, (key, value, *pools, slots, *numbers))

    def rotate_and_store(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotation: Rotation,
        pools: AnyPools,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """See Kernels.rotate_and_store: one launch, after which the rotated keys are in the pools only."""
        rows, heads, dim = query.shape
        query, key, value, cosine, sine = map(aligned, (query, key, value, *rotation))
        kv_heads = key.shape[1]
        numbers = integers(heads, kv_heads, *(each.stride(0) for each in (query, key, value)))
        # A thread has 16 bytes of the low half of a head, and of the high half.
        parts = -(-(heads + 2 * kv_heads) * dim * query.itemsize // (2 * WIDE * ROW_THREADS))
        tensors = (query, key, value, cosine, sine, *pools, slots)
        self._launcher.launch(self._rotate_and_store, (rows, parts, 1), ROW_THREADS, (*tensors, *numbers))
        return query

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
        return self._norm("layer_norm", x.contiguous(), (NOTHING, NOTHING), weight, bias, epsilon)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.rms_norm."""
        return self._norm("rms_norm", x.contiguous(), (NOTHING, NOTHING), weight, epsilon)

    def rms_norm_plus_one(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.rms_norm_plus_one."""
        return self._norm("rms_norm_plus_one", x.contiguous(), (NOTHING, NOTHING), weight, epsilon)

    def add_and_norm(
        self, residual: torch.Tensor, addend: torch.Tensor, bias: torch.Tensor | None, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Kernels.add_and_norm: the norm's kernel adds first, and writes the sum over the residual."""
        residual = residual.contiguous()
        addends = (addend.contiguous(), NOTHING if bias is None else bias)
        return residual, self._norm(norm.operation, residual, addends, *norm.arguments)

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

    def rotate_and_store(
        self,
        queries_and_keys: Sequence[torch.Tensor],
        value: torch.Tensor,
        rotation: Rotation,
        attention: Attention,
        pools: AnyPools,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """See Kernels.rotate_and_store."""
        if not isinstance(attention, CudaAttention):
            return super().rotate_and_store(queries_and_keys, value, rotation, attention, pools, slots)
        query, key = query_and_key(queries_and_keys, value.shape[1])
        return attention.rotate_and_store(query, key, value, rotation, pools, slots)

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """See Kernels.attention. Raises AttentionBackendError if the library is demanded and lacks the form."""
        if self._library is not None and (attention := self._library.attention(form, dtype)) is not None:
            self.name = f"{self._own_name}, attention by {self._library.name}"
            return attention
        source = attention_source(dtype, form.head_dim)
        if source is None or not form.options() <= ATTENTION_OPTIONS:
            return super().attention(form, dtype)
        return CudaAttention(self._launcher, self._work_lists, source, form, dtype)

    def _norm(self, name: str, x: torch.Tensor, addends: tuple[object, object], *arguments: Any) -> torch.Tensor:
        """Return the norm `name` of x, with an addend of x + addend + bias, which replaces x.

        `arguments`: those of the norm, its weight, its bias if it has one, and epsilon.
        """
        *weights, epsilon = arguments
        y = torch.empty_like(x)
        numbers = (*integers(x.shape[-1]), Real(epsilon))
        self._rows(name, x, x.numel() // x.shape[-1], (x, *addends, *weights, y, *numbers))
        return y

    def _rows(self, name: str, x: torch.Tensor, rows: int, arguments: tuple[object, ...], parts: int = 1) -> None:
        """Launch a kernel of rows.cu with `parts` thread blocks for each row."""
        self._launcher.launch(Kernel(ROWS, f"orca_{name}", x.dtype), (rows, parts, 1), ROW_THREADS, arguments)


def aligned(x: torch.Tensor) -> torch.Tensor:
    """Return x [S, ...] whose rows begin at multiples of 16 bytes: x itself, or rarely a copy."""
    if x.data_ptr() % WIDE == 0 and x.stride(0) * x.itemsize % WIDE == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)
