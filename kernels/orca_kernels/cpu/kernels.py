"""`CpuKernels`: the C++ kernels behind `orca_kernels.interface.Kernels`.

The reference computes the forms of attention that the C++ does not support (other options, or head dimensions that are
not a multiple of 16); oneDNN computes the matrix products on x86-64 without AVX2 (cpu/targets.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from orca_kernels.cpu.calls import INTEGER, POINTER, REAL, Calls, Function
from orca_kernels.cpu.heap import return_freed_memory
from orca_kernels.cpu.library import CpuLibrary
from orca_kernels.cpu.likeliest import CopiedLikeliest, copied
from orca_kernels.cpu.low_rank import PanelLowRank
from orca_kernels.cpu.packed_linear import PackedLinear, packs
from orca_kernels.cpu.panel_linear import WORD_BYTES, PanelLinear, padded, panels_of
from orca_kernels.cpu.panel_memory import PanelMemory
from orca_kernels.cpu.reordered_linear import ReorderedLinear
from orca_kernels.interface import AnyPools, Attention, AttentionForm, LinearMap, RaggedBatch, block_pools
from orca_kernels.likeliest import Likeliest
from orca_kernels.low_rank import LowRank
from orca_kernels.quantization import BITS, INTEGER_ACTIVATIONS, W8A8, WEIGHT_ONLY, QuantizedWeight
from orca_kernels.reference import ReferenceAttention, ReferenceKernels, ReferenceLinear

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""Element types of the library's functions."""
ATTENTION_OPTIONS = frozenset({"window", "kv_cache_dtype"})
"""Options of `AttentionForm` that the C++ supports."""
LANES = 16
"""Floats of a C++ vector: head dimensions must be a multiple (cpu/lanes.h)."""

SIGNATURES: dict[str, list[Any]] = {
    "layer_norm": [POINTER] * 4 + [INTEGER] * 2 + [REAL],
    "rms_norm": [POINTER] * 3 + [INTEGER] * 2 + [REAL],
    "silu_and_multiply": [POINTER] * 2 + [INTEGER] * 2,
    "rotate": [POINTER] * 3 + [INTEGER] * 4,
    "store": [POINTER] * 5 + [INTEGER] * 5,
    "attention": [POINTER] * 7 + [INTEGER] * 7 + [REAL],
    "store_int8": [POINTER] * 7 + [INTEGER] * 5,
    "attention_int8": [POINTER] * 9 + [INTEGER] * 7 + [REAL],
}
PACK: list[Any] = [POINTER] * 2 + [INTEGER] * 2
PRODUCT_SIGNATURES: dict[str, list[Any]] = {
    "pack": PACK,
    "linear": [POINTER] * 6 + [INTEGER] * 3,
    "low_rank": [POINTER] * 5 + [INTEGER] * 4,
}
"""Functions for the element types whose products the library computes."""
QUANTIZED_LINEAR: list[Any] = [POINTER] * 8 + [INTEGER] * 4
"""Arguments of the functions for groups of inputs, which all targets have but x86-64 without AVX2."""
W8A8_LINEAR: list[Any] = [POINTER] * 7 + [INTEGER] * 3
MAKE_COPY: list[Any] = [POINTER] * 5 + [INTEGER] * 2
LIKELIEST: list[Any] = [POINTER] * 9 + [INTEGER] * 4
MOST_INPUTS = ((1 << 31) - 1) // (127 * 128)
"""Inputs whose sums of w8a8 fit into 32 bits, and so those of w4a8."""
MOST_ROWS = {torch.float32: 32, torch.bfloat16: 5}
"""Rows for which the copy of cpu/likeliest.h saves time: with more, its products take as long as all outputs."""
MOST_DIMENSIONS = 512
"""Dimensions of a head whose sums of products fit into 32 bits (cpu/integer_attention.h)."""


class CpuAttention:
    """Implements `orca_kernels.interface.Attention` over cpu/attention.h, in the layout of cpu/kv_store.h."""

    recordable = True

    def __init__(self, calls: Calls, store: Function, attend: Function, form: AttentionForm) -> None:
        self._calls = calls
        self._store = store
        self._attend = attend
        self._form = form

    def new_pools(self, num_blocks: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device) -> AnyPools:
        """See Attention.new_pools."""
        return block_pools(self._form, num_blocks, num_kv_heads, dtype, device)

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        """See Attention.store."""
        pointers = (tensor.data_ptr() for tensor in (key, value, *pools, slots))
        self._store(*pointers, *key.shape, key.stride(0), value.stride(0))

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        """See Attention: one call for all requests."""
        num_tokens, heads, dim = query.shape
        output = self._calls.empty((num_tokens, heads, dim), query.dtype)
        self._attend(
            query.data_ptr(),
            *(pool.data_ptr() for pool in pools),
            batch.query_start.data_ptr(),
            batch.context_length.data_ptr(),
            batch.block_table.data_ptr(),
            output.data_ptr(),
            len(batch.context_length),
            heads,
            pools.keys.shape[1],
            dim,
            batch.block_table.shape[1],
            query.stride(0),
            self._form.window or 0,
            self._form.scale,
        )
        return output


class UnrecordedAttention(ReferenceAttention):
    """The reference's attention. It refuses to be recorded: a replay would attend over the recording's lengths."""

    def __init__(self, calls: Calls, form: AttentionForm) -> None:
        super().__init__(form)
        self._calls = calls

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        """See Attention; raise RuntimeError while a recording is made."""
        if self._calls.steps is not None:
            raise RuntimeError("the reference's attention reads lengths on the host")
        return super().__call__(query, pools, batch)


class CpuKernels(ReferenceKernels):
    """Implements `orca_kernels.interface.Kernels` for one element type over a library of cpu/library.py.

    `dtype` must be in NAMES. The reference computes the operations that are not overridden here.
    """

    def __init__(self, library: CpuLibrary, dtype: torch.dtype) -> None:
        self.name = f"C++ {library.target.name}"
        self.calls = Calls(library)
        """Recorder shared by all calls of these kernels."""
        self._panel_memory = PanelMemory()
        self._dtype = dtype
        suffix = NAMES[dtype]
        own_products = suffix not in library.target.onednn_products
        self.fixed_order = own_products
        signatures = SIGNATURES | PRODUCT_SIGNATURES if own_products else SIGNATURES
        self._functions = {name: self.calls.function(f"{name}_{suffix}", types) for name, types in signatures.items()}
        product_kind = ""
        if own_products and dtype == torch.bfloat16 and (library.tiles or library.dot_products):
            self.name += ", tiles" if library.tiles else ", dot products"
            product_kind = "tiles_" if library.tiles else "dots_"
            for name in ("linear", "low_rank", "attention") if library.tiles else ("linear", "low_rank"):
                self._functions[name] = self.calls.function(f"{name}_{product_kind}{suffix}", signatures[name])
        weight_only = WEIGHT_ONLY if hasattr(library, "orca_pack_int8") else ()
        self.quantized_products = frozenset(BITS if weight_only else (W8A8,))
        for quantization in weight_only:
            pack, linear = f"pack_{quantization}", f"linear_{quantization}"
            self._functions[pack] = self.calls.function(pack, PACK)
            kind = "_tiles" if product_kind == "tiles_" else ""
            self._functions[linear] = self.calls.function(f"{linear}{kind}_{suffix}", QUANTIZED_LINEAR)
        vnni = "_vnni" if library.vnni else ""
        if weight_only:
            self._functions["pack_w4a8"] = self._functions["pack_int4"]
            kind = "_tiles" if library.tiles and library.vnni else vnni  # few rows are multiplied by VNNI
            self._functions["linear_w4a8"] = self.calls.function(f"linear_w4a8{kind}_{suffix}", QUANTIZED_LINEAR)
        if vnni and hasattr(library, f"orca_attention_int8_vnni_{suffix}"):
            attend = self.calls.function(f"attention_int8_vnni_{suffix}", SIGNATURES["attention_int8"])
            self._functions["attention_int8_vnni"] = attend
        if own_products:
            self._functions["make_copy"] = self.calls.function(f"make_copy_{suffix}", MAKE_COPY)
            bytes_kind = "vnni_" if library.vnni else ""
            find = f"likeliest_{product_kind}{bytes_kind}{suffix}"
            self._functions["likeliest"] = self.calls.function(find, LIKELIEST)
        kind = "_tiles" if library.tiles else vnni
        self._functions["pack_groups"] = self.calls.function("pack_groups", PACK)
        self._functions["pack_w8a8"] = self.calls.function("pack_w8a8", PACK)
        self._functions["linear_w8a8"] = self.calls.function(f"linear_w8a8{kind}_{suffix}", W8A8_LINEAR)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearMap:
        """See Kernels.linear."""
        return_freed_memory()  # memory of the original weights, to bound peak memory
        outputs, inputs = weight.shape
        if not self._has_panels(inputs):
            return PackedLinear(weight, bias) if packs(self._dtype) else ReferenceLinear(weight, bias)
        empty = partial(self._panel_memory.empty, dtype=weight.dtype)
        panels = panels_of(self._functions["pack"], weight, empty)
        return PanelLinear(self.calls, self._functions["linear"], (outputs, inputs), (panels,), bias)

    def likeliest(self, weight: torch.Tensor, linear: LinearMap) -> Likeliest | None:
        """See Kernels.likeliest."""
        if not isinstance(linear, PanelLinear) or weight.shape[1] > MOST_INPUTS:
            return None
        copy = copied(self._functions["make_copy"], weight, self._panel_memory)
        if copy is None:
            return None
        return CopiedLikeliest(linear, self._functions["likeliest"], copy, MOST_ROWS[self._dtype])

    def low_rank(self, inputs: int) -> LowRank:
        """See Kernels.low_rank."""
        if not self._has_panels(inputs):
            return super().low_rank(inputs)
        return PanelLowRank(self._functions["low_rank"], self._functions["pack"])

    def _has_panels(self, inputs: int) -> bool:
        """Return True if the library has the products of a weight with so many inputs, which must fill whole words."""
        return "linear" in self._functions and inputs * self._dtype.itemsize % WORD_BYTES == 0

    def quantized_linear(self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearMap:
        """See Kernels.quantized_linear."""
        quantization, (outputs, inputs) = weight.quantization, weight.numbers.shape
        too_long = quantization in INTEGER_ACTIVATIONS and inputs > MOST_INPUTS
        if quantization not in self.quantized_products or too_long:
            return super().quantized_linear(weight, bias, dtype)
        return_freed_memory()  # as in `linear`
        size = padded(outputs) * _row_bytes(quantization, inputs)
        panels = self._panel_memory.empty(size, weight.numbers.dtype).zero_()
        numbers, product = weight.numbers.contiguous(), self._functions[f"linear_{quantization}"]
        self._functions[f"pack_{quantization}"](numbers.data_ptr(), panels.data_ptr(), inputs, outputs)
        scales = self._packed_groups(weight.scales)
        if quantization == W8A8:
            return PanelLinear(self.calls, product, (outputs, inputs), (panels, scales), bias)
        zeros = None if weight.zeros is None else self._packed_groups(weight.zeros)
        linear = PanelLinear(self.calls, product, (outputs, inputs), (panels, scales, zeros), bias, weight.group)
        return linear if weight.order is None else ReorderedLinear(linear, weight.order)

    def _packed_groups(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of groups [outputs, groups] in the order of panels, in float32."""
        outputs, groups = values.shape
        values, packed = values.float().contiguous(), torch.empty(padded(outputs) * groups)
        self._functions["pack_groups"](values.data_ptr(), packed.data_ptr(), outputs, groups)
        return packed

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.layer_norm."""
        x, y = x.contiguous(), self.calls.empty(x.shape, x.dtype)
        size = x.shape[-1]
        pointers = (x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr())
        self._functions["layer_norm"](*pointers, x.numel() // size, size, epsilon)
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.rms_norm."""
        x, y = x.contiguous(), self.calls.empty(x.shape, x.dtype)
        size = x.shape[-1]
        pointers = (x.data_ptr(), weight.data_ptr(), y.data_ptr())
        self._functions["rms_norm"](*pointers, x.numel() // size, size, epsilon)
        return y

    def silu_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Kernels.silu_and_multiply."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        y = self.calls.empty((rows, size), gate_up.dtype)
        self._functions["silu_and_multiply"](gate_up.data_ptr(), y.data_ptr(), rows, size)
        return y

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """See Kernels.rotate."""
        pointers = (x.data_ptr(), cosine.data_ptr(), sine.data_ptr())
        self._functions["rotate"](*pointers, *x.shape, x.stride(0))
        return x

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """See Kernels.attention."""
        if form.head_dim % LANES or not form.options() <= ATTENTION_OPTIONS:
            return UnrecordedAttention(self.calls, form)
        suffix = "" if form.kv_cache_dtype is None else f"_{form.kv_cache_dtype}"
        store, attend = self._functions[f"store{suffix}"], self._functions[f"attention{suffix}"]
        if form.kv_cache_dtype == "int8" and form.head_dim <= MOST_DIMENSIONS:
            attend = self._functions.get("attention_int8_vnni", attend)
        return CpuAttention(self.calls, store, attend, form)


def _row_bytes(quantization: str, inputs: int) -> int:
    """Return the bytes of an output's numbers in a panel, which fill words except for int8."""
    if quantization == "int8":
        return inputs
    return -(-inputs * BITS[quantization] // (8 * WORD_BYTES)) * WORD_BYTES
