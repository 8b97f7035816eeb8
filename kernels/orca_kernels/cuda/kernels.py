"""`CudaKernels`: the CUDA kernels and cuBLAS behind `orca_kernels.interface.Kernels`.

What they do not know (head dimensions that do not fit) goes to the reference.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from orca_kernels.cuda.modules import ELEMENTS, Launcher, rows_of_tile, supports
from orca_kernels.interface import RaggedBatch
from orca_kernels.reference import ReferenceKernels

ROW_THREADS = 256
ATTENTION_THREADS = 128
SPLIT_SLOTS = 512
"""Slots of one split of a long context; a multiple of the 64 that a thread block reads at a time."""

Index, Real = ctypes.c_longlong, ctypes.c_float


class CudaKernels(ReferenceKernels):
    """Implements `orca_kernels.interface.Kernels`; linear maps are the reference's, which are cuBLAS there."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._tiles: tuple[RaggedBatch, torch.Tensor] | None = None

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.layer_norm."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._rows("layer_norm", x, (x, weight, bias, y, Index(x.shape[-1]), Real(epsilon)))
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.rms_norm."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._rows("rms_norm", x, (x, weight, y, Index(x.shape[-1]), Real(epsilon)))
        return y

    def silu_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Kernels.silu_and_multiply."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        y = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
        grid = (rows, -(-size // ROW_THREADS), 1)
        self._launch("rows.cu", "silu_and_multiply", gate_up.dtype, grid, ROW_THREADS, (gate_up, y, Index(size)))
        return y

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """See Kernels.rotate."""
        rows, heads, dim = x.shape
        arguments = (x, cosine, sine, Index(heads), Index(dim), Index(x.stride(0)))
        self._launch("rows.cu", "rotate", x.dtype, (rows, 1, 1), ROW_THREADS, arguments)
        return x

    def store(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """See Kernels.store."""
        rows, heads, dim = key.shape
        arguments = (
            key, value, key_pool, value_pool, slots, Index(heads), Index(dim), Index(key.stride(0)),
            Index(value.stride(0)),
        )  # fmt: skip
        self._launch("rows.cu", "store", key.dtype, (rows, 1, 1), ROW_THREADS, arguments)

    def attention(
        self,
        query: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        batch: RaggedBatch,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """See Kernels.attention: one launch for all requests, and one to merge where contexts are split."""
        num_tokens, heads, dim = query.shape
        if not supports(query.dtype, dim):
            return super().attention(query, key_pool, value_pool, batch, scale, window)
        kv_heads, table_width = key_pool.shape[1], batch.block_table.shape[1]
        tiles = self._tile_map(batch, heads // kv_heads, rows_of_tile(dim))
        longest = table_width * 16
        # Prompts bring thread blocks enough of their own.
        num_splits = -(-longest // SPLIT_SLOTS) if num_tokens == len(batch.context_length) else 1
        split_size = SPLIT_SLOTS if num_splits > 1 else longest
        output = torch.empty((num_tokens, heads, dim), dtype=query.dtype, device=query.device)
        size = num_tokens * heads * num_splits * (dim + 2) if num_splits > 1 else 0
        parts = torch.empty(size, dtype=torch.float32, device=query.device)
        arguments = (
            query, key_pool, value_pool, batch.starts, batch.contexts, batch.block_table, tiles, output, parts,
            Index(heads), Index(kv_heads), Index(table_width), Index(query.stride(0)), Index(window or 0),
            Index(split_size), Index(num_splits), Real(scale),
        )  # fmt: skip
        grid = (len(tiles), kv_heads, num_splits)
        self._launch("attention.cu", "attention", query.dtype, grid, ATTENTION_THREADS, arguments, dim)
        if num_splits > 1:
            merged = (parts, output, Index(num_splits))
            self._launch("attention.cu", "merge", query.dtype, (num_tokens * heads, 1, 1), 32, merged, dim)
        return output

    def _tile_map(self, batch: RaggedBatch, heads: int, rows: int) -> torch.Tensor:
        """Returns [tiles, 2] int32, request and first row of each tile of `rows`; made once per iteration.

        All layers of a model have the same heads.
        """
        if self._tiles is None or self._tiles[0] is not batch:
            tiles = -(-np.diff(np.asarray(batch.query_start)) * heads // rows)
            request = np.repeat(np.arange(len(tiles)), tiles)
            place = np.arange(len(request)) - np.repeat(tiles.cumsum() - tiles, tiles)
            table = torch.from_numpy(np.stack((request, place * rows), axis=1).astype(np.int32))
            self._tiles = batch, table.to(batch.starts.device, non_blocking=True)
        return self._tiles[1]

    def _rows(self, name: str, x: torch.Tensor, arguments: tuple[object, ...]) -> None:
        """A thread block for each row of the last dimension."""
        self._launch("rows.cu", name, x.dtype, (x.numel() // x.shape[-1], 1, 1), ROW_THREADS, arguments)

    def _launch(
        self,
        source: str,
        name: str,
        dtype: torch.dtype,
        grid: tuple[int, int, int],
        threads: int,
        arguments: tuple[object, ...],
        head_dim: int | None = None,
    ) -> None:
        definitions = [("ORCA_ELEMENT", ELEMENTS[dtype])]
        if head_dim is not None:
            definitions.append(("ORCA_HEAD_DIM", head_dim))
        self._launcher.launch(source, tuple(definitions), f"orca_{name}", grid, threads, arguments)
