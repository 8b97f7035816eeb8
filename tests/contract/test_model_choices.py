"""The choices for a model: which of them a backend refuses, and that commands offer them without pydantic."""

from __future__ import annotations

import subprocess
import sys

import pytest
from orca_contract.model_choices import attention_refusal, backend_of, kv_cache_refusal, quantization_refusal


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_the_backend_of_a_device(device, backend):
    assert backend_of(device) == backend


@pytest.mark.parametrize(
    ("refusal", "plain", "other"), [(quantization_refusal, "none", "int4"), (kv_cache_refusal, "auto", "int8")]
)
def test_only_cuda_refuses_integers(refusal, plain, other):
    assert [refusal(plain, "gloo"), refusal(other, "gloo"), refusal(plain, "nccl")] == [""] * 3
    assert refusal(other, "nccl").startswith(f"{other}: the CUDA kernels lack it")


def test_only_gpus_have_a_choice_of_attention():
    assert [attention_refusal("auto", device) for device in ("cpu", "cuda")] == ["", ""]
    assert [attention_refusal(choice, "cuda") for choice in ("orca", "torch")] == ["", ""]
    assert attention_refusal("torch", "cpu") == "torch: only GPUs have a choice, use auto or a GPU"


def test_no_pydantic():
    program = "import sys, orca_contract.model_choices; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
