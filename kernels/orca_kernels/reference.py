"""`ReferenceKernels`: every operation in plain torch, on any device. Oracle of the fused kernels."""

from __future__ import annotations

import torch
from torch.nn import functional

from orca_kernels.interface import BLOCK_SIZE, RaggedBatch


class ReferenceKernels:
    """Implements `orca_kernels.interface.Kernels`."""

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.layer_norm."""
        return functional.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Kernels.rms_norm."""
        wide = x.float()
        normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return weight * normalised.to(x.dtype)

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See Kernels.gelu_tanh."""
        return functional.gelu(x, approximate="tanh")

    def silu_and_multiply(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """See Kernels.silu_and_multiply."""
        return functional.silu(gate) * up

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """See Kernels.rotate."""
        first, second = x.chunk(2, dim=-1)
        rotated = torch.cat((-second, first), dim=-1)
        return x * cosine.unsqueeze(1) + rotated * sine.unsqueeze(1)

    def store(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """See Kernels.store."""
        key_pool.flatten(0, 1).index_copy_(0, slots, key)
        value_pool.flatten(0, 1).index_copy_(0, slots, value)

    def attention(
        self,
        query: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        batch: RaggedBatch,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """See Kernels.attention. Split, attend request by request, merge (the paper, Figure 5)."""
        output = torch.empty_like(query)
        for index, context in enumerate(batch.context_length):
            start, end = batch.query_start[index], batch.query_start[index + 1]
            length = context + end - start
            # A single query in bfloat16 takes twice as long on a CPU as in float32, conversion counted in.
            working = torch.float32 if query.device.type == "cpu" and end - start == 1 else query.dtype
            blocks = batch.block_table[index, : -(-length // BLOCK_SIZE)]
            # index_select copies whole blocks; plain indexing would go element by element, four times slower.
            key = key_pool.index_select(0, blocks).flatten(0, 1)[:length].to(working)
            value = value_pool.index_select(0, blocks).flatten(0, 1)[:length].to(working)
            # Row i of the mask is the token at position context + i: it sees itself and all before it.
            whole_prompt = context == 0 and window is None
            mask = None
            if window is not None or (end - start > 1 and not whole_prompt):
                mask = torch.ones(end - start, length, dtype=torch.bool, device=query.device).tril(context)
                if window is not None:
                    mask = mask.triu(context - window + 1)
            attended = functional.scaled_dot_product_attention(
                query[start:end].to(working).transpose(0, 1).unsqueeze(0),
                key.transpose(0, 1).unsqueeze(0),
                value.transpose(0, 1).unsqueeze(0),
                attn_mask=mask,
                is_causal=whole_prompt and end - start > 1,
                scale=scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            output[start:end] = attended.squeeze(0).transpose(0, 1)
        return output
