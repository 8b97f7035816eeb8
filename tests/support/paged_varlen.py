"""FlashAttention-3's forward operator over a paged cache, in plain torch on the CPU, with its checks of arguments.

Torch's `varlen_attn_out` then runs as it is. On a GPU `activate_flash_attention_impl("FA3")` registers the operator in
the same way (torch/nn/attention/_fa3.py); the checks are those of torch and of FlashAttention (hopper/flash_api.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.library import Library

from support.paged_attention import attended

OPERATOR = "_flash_attention_forward_no_dropout_inplace"


@contextmanager
def fake_flash_attention() -> Iterator[list[dict[str, object]]]:
    """Register the operator for the CPU; yield the numbers of each call that are no tensors."""
    calls: list[dict[str, object]] = []

    def attend(
        out, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *,
        scale=None, window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None, block_table=None,
        num_splits=None,
    ):  # fmt: skip
        calls.append({"max_q": max_q, "max_k": max_k, "window": (window_size_left, window_size_right),
                      "is_causal": is_causal, "num_splits": num_splits})  # fmt: skip
        check(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, seqused_k, block_table)
        assert dropout_p == 0
        assert not return_debug_mask
        assert alibi_slopes is None
        assert out.shape == query.shape
        assert is_causal == ((window_size_left, window_size_right) == (-1, 0))
        for request, (begin, length) in enumerate(zip(cum_seq_q[:-1].tolist(), seqused_k.tolist(), strict=True)):
            count = int(cum_seq_q[request + 1]) - begin
            assert count <= max_q
            assert length <= max_k
            # All pages of the table are read, also the slots after `length`, whose scores are masked.
            pages = block_table[request].long()
            keys, values = (pool[pages].flatten(0, 1)[:length].float() for pool in (key, value))
            out[begin : begin + count] = attended(
                query[begin : begin + count].float(), keys, values, scale, window_size_left, window_size_right
            ).to(out.dtype)
        return torch.empty((query.shape[1], query.shape[0]))

    library = Library("aten", "IMPL", "CPU")
    library.impl(OPERATOR, attend, "CPU")
    try:
        yield calls
    finally:
        library._destroy()


def check(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, seqused_k, block_table) -> None:
    """Raise AssertionError for arguments that FlashAttention-3 refuses."""
    requests = len(cum_seq_q) - 1
    assert {query.dtype, key.dtype, value.dtype} <= {torch.bfloat16, torch.float16}
    assert query.dtype == key.dtype == value.dtype
    assert query.dim() == 3, "ragged queries"
    assert cum_seq_k is None, "no starts of keys beside a table of pages"
    assert key.shape == value.shape
    assert key.shape[3] == query.shape[2]
    assert query.shape[1] % key.shape[2] == 0
    assert query.shape[2] % 8 == 0
    assert query.shape[2] <= 256
    assert all(tensor.stride(-1) == 1 for tensor in (query, key, value, block_table))
    for numbers, shape in ((cum_seq_q, (requests + 1,)), (seqused_k, (requests,))):
        assert numbers.dtype == torch.int32
        assert numbers.is_contiguous()
        assert numbers.shape == shape
    assert block_table.dtype == torch.int32
    assert block_table.shape[0] == requests
    assert isinstance(max_q, int)
    assert isinstance(max_k, int)
    assert int(block_table.max()) < len(key)
