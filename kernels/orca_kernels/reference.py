"""`ReferenceKernels`: every operation in plain torch, on any device. Tests compare the fused kernels with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from torch.nn import functional

from orca_kernels.interface import (
    AnyPools,
    Attention,
    AttentionForm,
    Int8Pools,
    Kernels,
    LinearMap,
    Norm,
    RaggedBatch,
    Rotation,
    block_pools,
)
from orca_kernels.kv_quantization import dequantize_rows, quantize_rows
from orca_kernels.likeliest import Likeliest
from orca_kernels.low_rank import AdapterRows, LowRank
from orca_kernels.quantization import INTEGER_ACTIVATIONS, QuantizedWeight


class ReferenceLinear:
    """Implements `orca_kernels.interface.LinearMap`."""

    fuses_add = False

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return functional.linear(x, self._weight, self._bias)

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self.with_gelu_tanh(x)[1]

    def with_gelu_tanh(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See LinearMap."""
        y = self(x)
        return y, functional.gelu(y, approximate="tanh")

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return residual + self(x)


class ReferenceIntegerLinear(ReferenceLinear):
    """A `LinearMap` over a weight of w8a8 or w4a8."""

    EXACT_INPUTS = 1024
    """A float32 has the sum of so many products of numbers of eight bits exactly: 1024 x 127 x 128 < 2^24."""

    def __init__(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> None:
        numbers = weight.numbers
        if weight.zeros is not None:  # of w4a8: a difference has five bits
            parts = torch.split(numbers, weight.group, dim=1)
            numbers = torch.cat([part - weight.zeros[:, i : i + 1] for i, part in enumerate(parts)], dim=1)
        super().__init__(numbers, bias)
        self._scales = weight.scales
        self._group, self._order = weight.group, weight.order

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        x = x if self._order is None else x[:, self._order]
        y = torch.zeros((len(x), len(self._weight)), device=x.device)
        for part, weight, scales in zip(
            *(torch.split(each, self._group, dim=1) for each in (x, self._weight)), self._scales.t(), strict=True
        ):
            numbers, row_scales = quantize_rows(part)
            y += self._sums(numbers, weight).float() * row_scales.unsqueeze(1) * scales
        return (y if self._bias is None else y + self._bias.float()).to(x.dtype)

    def _sums(self, numbers: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the exact products [rows, outputs] of numbers [rows, inputs] and [outputs, inputs]."""
        parts = zip(*(torch.split(each, self.EXACT_INPUTS, dim=1) for each in (numbers, weight)), strict=True)
        return sum(
            (functional.linear(part.float(), of_part.float()).long() for part, of_part in parts),
            torch.zeros((len(numbers), len(weight)), dtype=torch.int64, device=weight.device),
        )


class ReferenceLowRank:
    """Implements `orca_kernels.low_rank.LowRank` by linear maps of `kernels`."""

    recordable = False

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._maps: dict[int, tuple[LinearMap, LinearMap]] = {}

    def __len__(self) -> int:
        """See LowRank."""
        return len(self._maps)

    def put(self, adapter: int, down: torch.Tensor, up: torch.Tensor) -> None:
        """See LowRank."""
        self._maps[adapter] = (self._kernels.linear(down, None), self._kernels.linear(up, None))

    def remove(self, adapter: int) -> None:
        """See LowRank."""
        self._maps.pop(adapter, None)

    def add(self, x: torch.Tensor, y: torch.Tensor, rows: AdapterRows, activated: torch.Tensor | None = None) -> None:
        """See LowRank."""
        assert rows.groups is not None, "not recordable"
        for adapter, places in rows.groups:
            if adapter in self._maps:
                down, up = self._maps[adapter]
                some = up.add(down(x.index_select(0, places)), y.index_select(0, places))
                y[places] = some
                if activated is not None:
                    activated[places] = functional.gelu(some, approximate="tanh")


class ReferenceAttention:
    """Implements `orca_kernels.interface.Attention` for every form. Reads lengths on the host."""

    recordable = False

    def __init__(self, form: AttentionForm) -> None:
        self._form = form

    def new_pools(self, num_blocks: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device) -> AnyPools:
        """See Attention.new_pools."""
        return block_pools(self._form, num_blocks, num_kv_heads, dtype, device)

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        """See Attention.store."""
        block, place = slots // BLOCK_SIZE, slots % BLOCK_SIZE
        if isinstance(pools, Int8Pools):
            key, pools.key_scales[block, :, place] = quantize_rows(key)
            value, pools.value_scales[block, :, place] = quantize_rows(value)
        pools.keys[block, :, :, place] = key
        pools.values[block, :, place] = value

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        """See Attention. Split, attend request by request, merge (the paper, Figure 5)."""
        window, softcap = self._form.window, self._form.softcap
        output = torch.empty_like(query)
        spans = pairwise(batch.query_start.tolist())
        for index, (context, (start, end)) in enumerate(zip(batch.context_length.tolist(), spans, strict=True)):
            length = context + end - start
            # On a CPU a single query takes twice as long in bfloat16 as in float32, conversion included. Dequantised
            # numbers are no values of a narrower type: in it, they would be rounded a second time.
            single = query.device.type == "cpu" and end - start == 1
            working = torch.float32 if single or isinstance(pools, Int8Pools) else query.dtype
            blocks = batch.block_table[index, : -(-length // BLOCK_SIZE)]
            key, value = (rows[:, :length].to(working) for rows in _rows_of(pools, blocks))
            # Row i of the mask is the token at position context + i, which attends to positions up to its own.
            whole_prompt = context == 0 and window is None and softcap is None
            mask = None
            if window is not None or (end - start > 1 and not whole_prompt):
                mask = torch.ones(end - start, length, dtype=torch.bool, device=query.device).tril(context)
                if window is not None:
                    mask = mask.triu(context - window + 1)
            if softcap is not None:
                output[start:end] = self._capped(query[start:end], key, value, mask, softcap)
                continue
            attended = functional.scaled_dot_product_attention(
                query[start:end].to(working).transpose(0, 1).unsqueeze(0),
                key.unsqueeze(0),
                value.unsqueeze(0),
                attn_mask=mask,
                is_causal=whole_prompt and end - start > 1,
                scale=self._form.scale,
                enable_gqa=query.shape[1] != key.shape[0],
            )
            output[start:end] = attended.squeeze(0).transpose(0, 1)
        return output

    def _capped(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, softcap: float
    ) -> torch.Tensor:
        """Return attended [L, N, D] for query [L, N, D] and key, value [G, T, D], scores in float32."""
        # [G, N / G, L, D]
        of_head = query.float().reshape(len(query), len(key), -1, query.shape[2]).permute(1, 2, 0, 3)
        scores = of_head @ key.float().unsqueeze(1).transpose(2, 3) * self._form.scale
        scores = (scores / softcap).tanh() * softcap
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        attended: torch.Tensor = scores.softmax(-1) @ value.float().unsqueeze(1)
        return attended.permute(2, 0, 1, 3).flatten(1, 2).to(query.dtype)


def _rows_of(pools: AnyPools, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values [G, 16 x blocks, D]; in float32 if the pools have integers."""
    # index_select copies whole blocks; indexing copies element by element, four times slower.
    # From [blocks, G, D, 16] and [blocks, G, 16, D].
    keys = pools.keys.index_select(0, blocks).permute(1, 0, 3, 2).flatten(1, 2)
    values = pools.values.index_select(0, blocks).transpose(0, 1).flatten(1, 2)
    if isinstance(pools, Int8Pools):
        key_scales, value_scales = (
            scales.index_select(0, blocks).transpose(0, 1).flatten(1, 2)  # [G, 16 x blocks]
            for scales in (pools.key_scales, pools.value_scales)
        )
        return dequantize_rows(keys, key_scales), dequantize_rows(values, value_scales)
    return keys, values


class ReferenceKernels:
    """Implements `orca_kernels.interface.Kernels`."""

    name = "plain torch"
    fixed_order = False
    quantized_products: frozenset[str] = frozenset()

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearMap:
        """See Kernels.linear."""
        return ReferenceLinear(weight, bias)

    def likeliest(self, weight: torch.Tensor, linear: LinearMap) -> Likeliest | None:
        """See Kernels.likeliest."""
        return None

    def low_rank(self, inputs: int) -> LowRank:
        """See Kernels.low_rank."""
        return ReferenceLowRank(self)

    def quantized_linear(self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearMap:
        """See Kernels.quantized_linear. A weight of weight-only quantization then occupies the memory of `dtype`."""
        if weight.quantization not in INTEGER_ACTIVATIONS:
            return self.linear(weight.dequantized(dtype), bias)
        return ReferenceIntegerLinear(weight, bias)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.layer_norm."""
        return functional.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.rms_norm."""
        wide = x.float()
        normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return weight * normalised.to(x.dtype)

    def rms_norm_plus_one(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.rms_norm_plus_one."""
        wide = x.float()
        normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return (normalised * (1 + weight.float())).to(x.dtype)

    def gelu_tanh_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Kernels.gelu_tanh_and_multiply."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.gelu(gate, approximate="tanh") * up

    def silu_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Kernels.silu_and_multiply."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """See Kernels.rotate."""
        first, second = x.chunk(2, dim=-1)
        rotated = torch.cat((-second, first), dim=-1)
        return x * cosine.to(x.dtype).unsqueeze(1) + rotated * sine.to(x.dtype).unsqueeze(1)

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """See Kernels.attention."""
        return ReferenceAttention(form)

    def add_and_norm(
        self, residual: torch.Tensor, addend: torch.Tensor, bias: torch.Tensor | None, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Kernels.add_and_norm."""
        total = residual + (addend if bias is None else addend + bias)
        normed: torch.Tensor = getattr(self, norm.operation)(total, *norm.arguments)
        return total, normed

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
        query, key = query_and_key([self.rotate(part, *rotation) for part in queries_and_keys], value.shape[1])
        attention.store(key, value, pools, slots)
        return query


def query_and_key(queries_and_keys: Sequence[torch.Tensor], num_kv_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys, which are one tensor or two."""
    if len(queries_and_keys) == 2:
        return queries_and_keys[0], queries_and_keys[1]
    (both,) = queries_and_keys
    return both[:, :-num_kv_heads], both[:, -num_kv_heads:]
