"""The self-test of an attention: the reference passes, and each kind of error of an attention fails."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch
from orca_kernels.attention_self_test import SelfTestError, self_test_attention
from orca_kernels.cuda.torch_attention import CAPABILITY, PagedBatches, TorchAttention, load_varlen
from orca_kernels.interface import AttentionForm
from orca_kernels.reference import ReferenceAttention
from support.paged_varlen import fake_flash_attention
from torch.nn.attention.varlen import varlen_attn_out

CPU = torch.device("cpu")
FORM = AttentionForm(64, 0.125)


@pytest.mark.parametrize("window", [None, 1, 40, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_reference_passes(window, dtype):
    form = replace(FORM, window=window)
    self_test_attention(ReferenceAttention(form), form, (4, 2), dtype, CPU)


@pytest.mark.parametrize(("heads", "window"), [((4, 4), None), ((8, 1), 40)])
def test_torch_passes(heads, window):
    form = replace(FORM, window=window)
    with fake_flash_attention() as calls:
        self_test_attention(TorchAttention(varlen_attn_out, PagedBatches(), form), form, heads, torch.bfloat16, CPU)
    assert len(calls) == 2, "with contexts on the host, and on the device"
    assert calls[0]["max_q"] == 33


class Wrong(ReferenceAttention):
    """The reference with an error."""

    def __init__(self, form: AttentionForm, error: str) -> None:
        super().__init__(form)
        self._error = error

    def store(self, key, value, pools, slots):
        if self._error == "stores a token elsewhere":
            slots = slots.clone()
            slots[3] += 1
        super().store(key, value, pools, slots)

    def __call__(self, query, pools, batch):
        if self._error == "one slot too few":
            batch = replace(batch, context_length=(batch.context_length - 1).clamp(min=0))
        if self._error == "blocks in another order":
            batch = replace(batch, block_table=batch.block_table.roll(1, 1))
        output = super().__call__(query, pools, batch)
        if self._error == "a row is not written":
            output[21] = float("nan")
        if self._error == "heads in another order":
            output = output.flip(1)
        return output


@pytest.mark.parametrize(
    "error",
    [
        "stores a token elsewhere",
        "one slot too few",
        "blocks in another order",
        "a row is not written",
        "heads in another order",
    ],
)
def test_an_error_is_found(error):
    with pytest.raises(SelfTestError, match=r"^results differ from those of the reference by "):
        self_test_attention(Wrong(FORM, error), FORM, (4, 2), torch.bfloat16, CPU)


@pytest.mark.parametrize("wrong", [39, 41, None])
def test_a_wrong_window_is_found(wrong):
    """One position too few, one too many, and no window."""
    form = replace(FORM, window=40)
    with pytest.raises(SelfTestError):
        self_test_attention(ReferenceAttention(replace(form, window=wrong)), form, (4, 2), torch.bfloat16, CPU)


def has_flash_attention() -> bool:
    """Return True on a GPU that FlashAttention-3 runs on, with its package."""
    is_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == CAPABILITY
    return is_hopper and importlib.util.find_spec("flash_attn_interface") is not None


@pytest.mark.skipif(not has_flash_attention(), reason="no Hopper GPU with the package of FlashAttention-3")
@pytest.mark.parametrize("window", [None, 1, 40, 300])
@pytest.mark.parametrize("heads", [(4, 4), (8, 1), (32, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flash_attention_passes(window, heads, dtype):
    form = AttentionForm(128, 128**-0.5, window)
    attention = TorchAttention(load_varlen(), PagedBatches(), form)
    self_test_attention(attention, form, heads, dtype, torch.device("cuda"))
