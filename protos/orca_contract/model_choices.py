"""The choices for a model and its data plane, and which of them exclude each other. Imports no pydantic.

Commands offer these choices before they import the messages that contain them (topology.py), which takes a tenth of a
second.
"""

from __future__ import annotations

from typing import Literal

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""Type of weights and activations; auto is the checkpoint's own."""
Quantization = Literal["none", "int8", "int4", "w8a8"]
"""Quantization of the model's linear maps, when a worker loads them: of weights only, or (w8a8, since version 9) of
weights and activations."""
KvCacheDtype = Literal["auto", "int8"]
"""Type of cached keys and values; auto is that of the activations."""
Backend = Literal["gloo", "nccl"]
"""Backend of the data plane: gloo on CPUs, nccl on GPUs."""

AttentionBackend = Literal["auto", "orca", "torch"]
"""Attention of the workers' GPUs: ORCA's own kernels, torch's library, or (auto) what suits the GPU."""


def backend_of(device: str) -> Backend:
    """Return the data plane's backend for workers on a device, cpu or cuda."""
    return "nccl" if device == "cuda" else "gloo"


def quantization_refusal(quantization: Quantization, backend: Backend) -> str:
    """Return why a backend's workers refuse a quantization; "" if they do not."""
    if quantization == "none" or backend == "gloo":
        return ""
    return f"{quantization}: the CUDA kernels lack it, use none or a CPU"


def kv_cache_refusal(kv_cache_dtype: KvCacheDtype, backend: Backend) -> str:
    """Return why a backend's workers refuse a type of cached keys and values; "" if they do not."""
    if kv_cache_dtype == "auto" or backend == "gloo":
        return ""
    return f"{kv_cache_dtype}: the CUDA kernels lack it, use auto or a CPU"


def attention_refusal(attention_backend: AttentionBackend, device: str) -> str:
    """Return why workers on a device, cpu or cuda, refuse a choice of attention; "" if they do not."""
    if attention_backend == "auto" or device == "cuda":
        return ""
    return f"{attention_backend}: only GPUs have a choice, use auto or a GPU"
