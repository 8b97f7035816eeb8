"""The choices for a model and its data plane, and which of them exclude each other. Imports no pydantic.

Commands offer these choices before they import the messages that contain them (topology.py), which takes a tenth of a
second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""Type of weights and activations; auto is the checkpoint's own."""
Quantization = Literal["none", "int8", "int4", "w8a8", "w4a8"]
"""Quantization of the model's linear maps, when a worker loads them: of weights only, or (w8a8 since version 9,
w4a8 since version 12) of weights and activations."""
KvCacheDtype = Literal["auto", "int8"]
"""Type of cached keys and values; auto is that of the activations."""
Pooling = Literal["last", "mean"]
"""Which tokens' activations, after the final norm, an embedding is the mean of: the last one's, or all of them."""
PoolingChoice = Literal["auto", "last", "mean"]
"""auto is that of the model's files."""
MAX_ADAPTERS = 64
"""Most adapters of a model."""
MAX_NAME_LENGTH = 256
"""Characters of an adapter's name."""
Device = Literal["cpu", "cuda"]
"""Device of the workers."""
Backend = Literal["gloo", "nccl"]
"""Backend of the data plane: gloo on CPUs, nccl or gloo on GPUs."""

AttentionBackend = Literal["auto", "orca", "torch", "flashinfer"]
"""Attention of the workers' GPUs: ORCA's own kernels, torch's library, FlashInfer's, or (auto) what suits the GPU."""
AllReduce = Literal["library", "symmetric"]
"""Sum over the ranks of a worker: the one of the backend's library, or for small tensors torch's symmetric memory."""
MOST_SYMMETRIC_RANKS = 8
"""Ranks for which torch's kernels of symmetric memory are made."""


def backend_of(device: Device) -> Backend:
    """Return the default backend of the data plane for workers on a device."""
    return "nccl" if device == "cuda" else "gloo"


def device_of(backend: Backend) -> Device:
    """Return the default device of workers with a backend of the data plane."""
    return "cuda" if backend == "nccl" else "cpu"


def backend_refusal(device: Device, backend: Backend) -> str:
    """Return why workers on a device refuse a backend of the data plane; "" if they do not."""
    if device == "cpu" and backend == "nccl":
        return "nccl: needs GPUs, use gloo or --device cuda"
    return ""


def tensor_parallel_refusal(tensor_parallel_size: int, device: Device, backend: Backend) -> str:
    """Return why workers refuse a number of ranks; "" if they do not."""
    if tensor_parallel_size == 1 or device == "cpu" or backend == "nccl":
        return ""
    return f"{tensor_parallel_size}: on GPUs the ranks of a worker need nccl, use 1 or --communication-backend nccl"


def all_reduce_refusal(all_reduce: AllReduce, tensor_parallel_size: int, backend: Backend) -> str:
    """Return why workers refuse a way to sum over their ranks; "" if they do not."""
    if all_reduce == "library":
        return ""
    if backend != "nccl":
        return f"{all_reduce}: needs GPUs and --communication-backend nccl, use library"
    if not 1 < tensor_parallel_size <= MOST_SYMMETRIC_RANKS:
        return f"{all_reduce}: for 2 to {MOST_SYMMETRIC_RANKS} ranks per worker, use library"
    return ""


def quantization_refusal(quantization: Quantization, device: Device) -> str:
    """Return why workers on a device refuse a quantization; "" if they do not."""
    if quantization == "none" or device == "cpu":
        return ""
    return f"{quantization}: the CUDA kernels lack it, use none or a CPU"


def kv_cache_refusal(kv_cache_dtype: KvCacheDtype, device: Device) -> str:
    """Return why workers on a device refuse a type of cached keys and values; "" if they do not."""
    if kv_cache_dtype == "auto" or device == "cpu":
        return ""
    return f"{kv_cache_dtype}: the CUDA kernels lack it, use auto or a CPU"


def attention_refusal(attention_backend: AttentionBackend, device: Device) -> str:
    """Return why workers on a device refuse a choice of attention; "" if they do not."""
    if attention_backend == "auto" or device == "cuda":
        return ""
    return f"{attention_backend}: only GPUs have a choice, use auto or a GPU"


def adapters_refusal(model_names: Sequence[str], adapters: Sequence[str]) -> str:
    """Return why adapters with these names are refused beside a model with its names; "" if they are not."""
    if len(adapters) > MAX_ADAPTERS:
        return f"{len(adapters)} adapters, at most {MAX_ADAPTERS} are possible"
    names = [*model_names, *adapters]
    if twice := next((name for name in adapters if names.count(name) > 1), ""):
        return f"{twice!r} is also the name of the model or of another adapter"
    return ""


def first_refusal(
    device: Device,
    backend: Backend,
    tensor_parallel_size: int,
    *,
    all_reduce: AllReduce,
    quantization: Quantization,
    kv_cache_dtype: KvCacheDtype,
    attention_backend: AttentionBackend,
) -> str:
    """Return the name of the first setting that workers refuse, and why; "" if they refuse none."""
    for name, refusal in (
        ("communication_backend", backend_refusal(device, backend)),
        ("tensor_parallel_size", tensor_parallel_refusal(tensor_parallel_size, device, backend)),
        ("all_reduce", all_reduce_refusal(all_reduce, tensor_parallel_size, backend)),
        ("quantization", quantization_refusal(quantization, device)),
        ("kv_cache_dtype", kv_cache_refusal(kv_cache_dtype, device)),
        ("attention_backend", attention_refusal(attention_backend, device)),
    ):
        if refusal:
            return f"{name} {refusal}"
    return ""
