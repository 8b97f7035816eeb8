"""`CudaKernels`: the CUDA kernels and cuBLAS behind `orca_kernels.interface.Kernels`.

The reference computes forms of attention that the sources do not support (other options or head dimensions).
"""

from __future__ import annotations

import ctypes
import math

import torch

from orca_kernels.cuda.modules import TENSOR_CORES, Kernel, Launcher, attention_source, rows_of_tile
from orca_kernels.cuda.sampling import CudaSampling
from orca_kernels.cuda.work import Shape, WorkLists
from orca_kernels.interface import AnyPools, Attention, AttentionForm, LinearMap, RaggedBatch
from orca_kernels.reference import ReferenceKernels, ReferenceLinear

ATTENTION_OPTIONS = frozenset({"window"})
"""Options of `AttentionForm` that the CUDA sources support."""
ROW_THREADS = 256
ATTENTION_THREADS = 128
MERGE_THREADS = 128
LOG2_E = 1 / math.log(2)
"""The attention kernels compute powers of two."""

Index, Int, Real = ctypes.c_longlong, ctypes.c_int, ctypes.c_float


class CudaLinear(ReferenceLinear):
    """Implements `orca_kernels.interface.LinearMap` with cuBLAS."""

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap.add: cuBLAS accumulates to the residual, without another kernel."""
        if self._bias is not None:
            residual.add_(self._bias)
        return residual.addmm_(x, self._weight.t())


class CudaAttention:
    """Implements `orca_kernels.interface.Attention` with the attention kernels of `source`."""

    def __init__(self, launcher: Launcher, work_lists: WorkLists, source: str, form: AttentionForm) -> None:
        """`work_lists`: shared by all layers."""
        self._launcher = launcher
        self._work_lists = work_lists
        self._source = source
        self._form = form

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        """See Attention.store."""
        rows, heads, dim = key.shape
        strides = (Index(key.stride(0)), Index(value.stride(0)))
        if self._source == TENSOR_CORES:
            kernel = Kernel(TENSOR_CORES, "orca_store", key.dtype, dim)
            numbers = (Int(heads), Int(key.stride(0)), Int(value.stride(0)))
            self._launcher.launch(kernel, (rows, 1, 1), ROW_THREADS, (key, value, *pools, slots, *numbers))
        else:
            arguments = (key, value, *pools, slots, Index(heads), Index(dim), *strides)
            launch_rows(self._launcher, "store", key, rows, arguments)

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        """See Attention: one launch for all requests, and one to merge the splits of contexts."""
        num_tokens, heads, dim = query.shape
        kv_heads, window = pools.keys.shape[1], self._form.window or 0
        shape = Shape(heads // kv_heads, kv_heads, rows_of_tile(self._source, dim), window)
        work = self._work_lists.of(batch, shape, self)
        output = torch.empty((num_tokens, heads, dim), dtype=query.dtype, device=query.device)
        parts = torch.empty((work.part_rows, kv_heads, dim + 2), dtype=torch.float32, device=query.device)
        arguments = (
            query, *pools, work.starts, work.contexts, batch.block_table, work.works, work.counts, output, parts,
            Int(shape.heads), Int(kv_heads), Int(batch.block_table.shape[1]), Int(query.stride(0)), Int(window),
            Real(self._form.scale * LOG2_E),
        )  # fmt: skip
        kernel = Kernel(self._source, "orca_attention", query.dtype, dim)
        self._launcher.launch(kernel, (work.blocks, kv_heads, 1), ATTENTION_THREADS, arguments)
        if len(work.merges):
            merge = Kernel("merge.cu", "orca_merge", query.dtype, dim)
            of_merge = (parts, work.starts, work.merges, work.counts, output, Int(shape.heads), Int(kv_heads))
            self._launcher.launch(merge, (len(work.merges), kv_heads, work.merge_rows), MERGE_THREADS, of_merge)
        return output


class CudaKernels(ReferenceKernels):
    """Implements `orca_kernels.interface.Kernels`."""

    def __init__(self, launcher: Launcher, name: str = "CUDA") -> None:
        self.name = name
        self.sampling = CudaSampling(launcher)
        """Sampling of tokens, which is no operation of a layer."""
        self._launcher = launcher
        self._work_lists = WorkLists(launcher)

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
        return CudaAttention(self._launcher, self._work_lists, source, form)

    def _rows(self, name: str, x: torch.Tensor, rows: int, arguments: tuple[object, ...], parts: int = 1) -> None:
        """See `launch_rows`."""
        launch_rows(self._launcher, name, x, rows, arguments, parts)


def launch_rows(
    launcher: Launcher, name: str, x: torch.Tensor, rows: int, arguments: tuple[object, ...], parts: int = 1
) -> None:
    """Launch a kernel of rows.cu with a thread block for each row, or for each of the row's parts."""
    kernel = Kernel("rows.cu", f"orca_{name}", x.dtype)
    launcher.launch(kernel, (rows, parts, 1), ROW_THREADS, arguments)
