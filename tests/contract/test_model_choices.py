"""The choices for a model: which of them a backend refuses, and that commands offer them without pydantic."""

from __future__ import annotations

import subprocess
import sys

import pytest
from orca_contract.model_choices import (
    all_reduce_refusal,
    attention_refusal,
    backend_of,
    backend_refusal,
    device_of,
    first_refusal,
    kv_cache_refusal,
    quantization_refusal,
    tensor_parallel_refusal,
)


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_the_backend_of_a_device(device, backend):
    assert backend_of(device) == backend
    assert device_of(backend) == device


def test_only_nccl_on_cpus_is_refused():
    refused = {
        (device, backend)
        for device in ("cpu", "cuda")
        for backend in ("gloo", "nccl")
        if backend_refusal(device, backend)
    }
    assert refused == {("cpu", "nccl")}
    assert backend_refusal("cpu", "nccl") == "nccl: needs GPUs, use gloo or --device cuda"


def test_only_gloo_on_gpus_refuses_ranks_that_split_a_layer():
    refused = {
        (size, *choice)
        for size in (1, 2)
        for choice in (("cpu", "gloo"), ("cuda", "gloo"), ("cuda", "nccl"))
        if tensor_parallel_refusal(size, *choice)
    }
    assert refused == {(2, "cuda", "gloo")}
    assert tensor_parallel_refusal(2, "cuda", "gloo").endswith("use 1 or --communication-backend nccl")


@pytest.mark.parametrize(
    ("device", "changes", "message"),
    [
        ("cpu", {}, ""),
        ("cpu", {"backend": "nccl", "attention_backend": "torch"}, "communication_backend nccl: "),
        ("cuda", {"tensor_parallel_size": 2}, "tensor_parallel_size 2: "),
        ("cpu", {"all_reduce": "symmetric"}, "all_reduce symmetric: "),
        ("cuda", {"quantization": "int8", "kv_cache_dtype": "int8"}, "quantization int8: "),
        ("cuda", {"kv_cache_dtype": "int8"}, "kv_cache_dtype int8: "),
        ("cpu", {"attention_backend": "torch"}, "attention_backend torch: "),
    ],
)
def test_the_first_refusal_names_its_setting(device, changes, message):
    settings = {
        "backend": "gloo", "tensor_parallel_size": 1, "all_reduce": "library", "quantization": "none",
        "kv_cache_dtype": "auto", "attention_backend": "auto",
    }  # fmt: skip
    refusal = first_refusal(device, **{**settings, **changes})
    assert refusal.startswith(message)
    assert bool(refusal) == bool(message)


def test_symmetric_memory_is_for_nccl_and_for_ranks_that_torch_has_kernels_for():
    assert [all_reduce_refusal("library", 64, "gloo"), all_reduce_refusal("symmetric", 8, "nccl")] == [""] * 2
    assert all_reduce_refusal("symmetric", 2, "gloo").startswith("symmetric: needs GPUs and --communication-backend")
    for size in (1, 9):
        assert all_reduce_refusal("symmetric", size, "nccl") == "symmetric: for 2 to 8 ranks per worker, use library"


@pytest.mark.parametrize(
    ("refusal", "plain", "other"), [(quantization_refusal, "none", "int4"), (kv_cache_refusal, "auto", "int8")]
)
def test_only_cuda_refuses_integers(refusal, plain, other):
    assert [refusal(plain, "cpu"), refusal(other, "cpu"), refusal(plain, "cuda")] == [""] * 3
    assert refusal(other, "cuda").startswith(f"{other}: the CUDA kernels lack it")


def test_only_gpus_have_a_choice_of_attention():
    assert [attention_refusal("auto", device) for device in ("cpu", "cuda")] == ["", ""]
    assert [attention_refusal(choice, "cuda") for choice in ("orca", "torch")] == ["", ""]
    assert attention_refusal("torch", "cpu") == "torch: only GPUs have a choice, use auto or a GPU"


def test_no_pydantic():
    program = "import sys, orca_contract.model_choices; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
