"""FlashInfer's wrapper of ragged batches over a paged K/V cache, in plain torch, with its checks of arguments.

The parameters, and their order and defaults, are those of flashinfer-python 0.7.2.post1 (flashinfer/prefill.py): a test
compares them with the package where it is installed. Options that ORCA does not use must have their defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch

from support.paged_attention import attended

VERSION = "0.7.2.post1"


class FakeWrapper:
    """Plays `flashinfer.BatchPrefillWithPagedKVCacheWrapper`; `device` "meta" plays a GPU without data."""

    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
        paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, custom_mask_buf=None,
        mask_indptr_buf=None, backend="auto", jit_args=None, jit_kwargs=None, variant_owns_mask=False,
    ):  # fmt: skip
        check_defaults(FakeWrapper.__init__, locals(), ("float_workspace_buffer", "kv_layout"))
        assert float_workspace_buffer.dtype == torch.uint8
        assert kv_layout == "NHD"
        self.workspace = float_workspace_buffer
        self.device = float_workspace_buffer.device
        self.plans: list[dict[str, object]] = []
        self.runs = 0

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
        pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
        rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None, o_data_type=None,
        non_blocking=True, prefix_len_ptr=None, token_pos_in_items_ptr=None, token_pos_in_items_len=0,
        max_item_len_ptr=None, seq_lens=None, seq_lens_q=None, block_tables=None, max_token_per_sequence=None,
        max_sequence_kv=None, fixed_split_size=None, disable_split_kv=False, uniform_q_len=None,
    ):  # fmt: skip
        used = (
            "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads",
            "num_kv_heads", "head_dim_qk", "page_size", "causal", "sm_scale", "window_left", "logits_soft_cap",
            "q_data_type", "kv_data_type",
        )  # fmt: skip
        check_defaults(FakeWrapper.plan, locals(), used)
        requests = len(qo_indptr) - 1
        for numbers, length in ((qo_indptr, requests + 1), (paged_kv_indptr, requests + 1),
                                (paged_kv_last_page_len, requests)):  # fmt: skip
            assert numbers.device.type == "cpu", "the planner reads it: on the device, the host would wait"
            assert numbers.dtype == torch.int32
            assert numbers.shape == (length,)
        for starts in (qo_indptr, paged_kv_indptr):
            assert starts[0] == 0
            assert (starts.diff() > 0).all()
        assert paged_kv_indices.dtype == torch.int32
        assert paged_kv_indices.device == self.device
        assert paged_kv_indices.shape == (int(paged_kv_indptr[-1]),)
        assert ((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all()
        lengths = (paged_kv_indptr.diff() - 1) * page_size + paged_kv_last_page_len
        assert (lengths >= qo_indptr.diff()).all()
        assert num_qo_heads % num_kv_heads == 0
        assert head_dim_qk in (64, 128, 256)
        assert causal
        assert q_data_type == kv_data_type
        assert q_data_type in (torch.bfloat16, torch.float16)
        # A wrapper keeps the tensors that it was given: those of a batch must not change while it is planned.
        self.plans.append({name: value for name, value in locals().items() if name in used})
        self._lengths = lengths.tolist()

    def run(
        self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None, return_lse=False,
        lse_base="log2", lse_layout="NH", enable_pdl=None, window_left=None, sinks=None, kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None, use_fp16_softmax=None, uses_spcompress=None,
    ):  # fmt: skip
        assert args == ()
        check_defaults(FakeWrapper.run, locals(), ("q", "paged_kv_cache", "out"))
        plan, (keys, values) = self.plans[-1], paged_kv_cache
        self.runs += 1
        starts, page_starts = plan["qo_indptr"].tolist(), plan["paged_kv_indptr"].tolist()
        assert q.shape == out.shape == (starts[-1], plan["num_qo_heads"], plan["head_dim_qk"])
        assert keys.shape[1:] == (plan["page_size"], plan["num_kv_heads"], plan["head_dim_qk"])
        assert keys.shape == values.shape
        assert keys.stride() == values.stride(), "other strides need a module of their own"
        assert {tensor.dtype for tensor in (q, out, keys, values)} == {plan["q_data_type"]}
        assert {tensor.device for tensor in (q, out, keys, values)} == {self.device}
        assert all(tensor.stride(-1) == 1 for tensor in (q, out, keys))
        if self.device.type == "meta":
            return out
        for request, length in enumerate(self._lengths):
            begin, end = starts[request], starts[request + 1]
            pages = plan["paged_kv_indices"][page_starts[request] : page_starts[request + 1]].long()
            rows = (pool[pages].flatten(0, 1)[:length].float() for pool in (keys, values))
            out[begin:end] = attended(
                q[begin:end].float(), *rows, plan["sm_scale"], plan["window_left"], cap=plan["logits_soft_cap"] or 0.0
            ).to(out.dtype)
        return out


def check_defaults(function, values, used: Sequence[str]) -> None:
    """Raise AssertionError if an argument besides those `used` is not the default."""
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in ("self", "args", *used):
            assert values[name] == parameter.default, name


class FakeEvent:
    """Plays `torch.cuda.Event`."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class FakeFlashInfer:
    """Makes wrappers, as the package's class does, and remembers them."""

    def __init__(self) -> None:
        self.wrappers: list[FakeWrapper] = []

    def __call__(self, workspace: torch.Tensor, layout: str) -> FakeWrapper:
        self.wrappers.append(FakeWrapper(workspace, layout))
        return self.wrappers[-1]
