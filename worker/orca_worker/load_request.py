"""Checks of a Load request that do not need the model's files, and the request that loads its draft model."""

from __future__ import annotations

import os
from typing import cast, get_args

from orca_contract import rank_environment
from orca_contract.model_choices import (
    AllReduce,
    AttentionBackend,
    Backend,
    Device,
    KvCacheDtype,
    Quantization,
    backend_of,
    first_refusal,
)
from orca_protos import engine_pb2 as pb

from orca_worker.errors import ModelError


def check_request(request: pb.LoadRequest) -> None:
    """Raise ModelError for an invalid count, an unknown quantization of weights or of the K/V cache, an unknown
    attention or all-reduce, an option that the device or the data plane lacks, a missing folder of adapters, or a
    forbidden environment variable.

    A master of this version sends valid requests.
    """
    if refusal := rank_environment.refusal(request.environment):
        raise ModelError(f"environment: {refusal}")
    for name in ("pipeline_parallel_size", "tensor_parallel_size", "workers_on_host"):
        if getattr(request, name) < 1:
            raise ModelError(f"{name} {getattr(request, name)}: at least 1 is expected")
    for name, value, known in (
        ("all_reduce", all_reduce(request), get_args(AllReduce)),
        ("quantization", quantization(request), get_args(Quantization)),
        ("kv_cache_dtype", kv_cache_dtype(request), get_args(KvCacheDtype)),
        ("attention_backend", attention_backend(request), get_args(AttentionBackend)),
    ):
        if value not in known:
            raise ModelError(f"{name} {value!r}: this worker knows {', '.join(known)}")
    device: Device = "cpu" if request.device == "cpu" else "cuda"
    backend = cast("Backend", request.communication_backend or backend_of(device))
    if refusal := first_refusal(
        device,
        backend,
        request.tensor_parallel_size,
        all_reduce=all_reduce(request),
        quantization=quantization(request),
        kv_cache_dtype=kv_cache_dtype(request),
        attention_backend=attention_backend(request),
    ):
        raise ModelError(refusal)
    if request.runtime_adapters and not os.path.isdir(request.runtime_adapters):
        raise ModelError(f"--enable-runtime-adapters: the worker has no folder {request.runtime_adapters}")
    if request.deterministic and request.device != "cpu":
        raise ModelError("--deterministic on: only the CPU kernels compute in a fixed order, start without a GPU")
    if not 0 <= request.partition < request.pipeline_parallel_size:
        raise ModelError(f"partition {request.partition} of {request.pipeline_parallel_size}: partitions count from 0")


def draft_request(request: pb.LoadRequest) -> pb.LoadRequest:
    """Return the request that loads the draft model of a checked request, whole, on the ranks of one worker."""
    wanted = pb.LoadRequest()
    wanted.CopyFrom(request)
    wanted.model_path, wanted.partition, wanted.pipeline_parallel_size = request.draft_model_path, 0, 1
    wanted.max_model_len, wanted.deterministic = 0, False
    for name in ("draft_model_path", "adapter", "runtime_adapters"):
        wanted.ClearField(name)
    return wanted


def has_draft_model(request: pb.LoadRequest) -> bool:
    """Return True if the worker of a checked request loads a draft model: on the last partition."""
    return bool(request.draft_model_path) and request.partition == request.pipeline_parallel_size - 1


def all_reduce(request: pb.LoadRequest) -> AllReduce:
    """Return the all-reduce of a checked request; a master of an older version sends none."""
    return cast("AllReduce", request.all_reduce or "library")


def quantization(request: pb.LoadRequest) -> Quantization:
    """Return the quantization of weights of a checked request; a master of an older version sends none."""
    return cast("Quantization", request.quantization or "none")


def kv_cache_dtype(request: pb.LoadRequest) -> KvCacheDtype:
    """Return the type of cached keys and values of a checked request; a master of an older version sends none."""
    return cast("KvCacheDtype", request.kv_cache_dtype or "auto")


def attention_backend(request: pb.LoadRequest) -> AttentionBackend:
    """Return the choice of a GPU's attention of a checked request; a master of an older version sends none."""
    return cast("AttentionBackend", request.attention_backend or "auto")
