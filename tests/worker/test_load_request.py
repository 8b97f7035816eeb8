"""A Load request is checked before the model's files are."""

from __future__ import annotations

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.errors import ModelError
from orca_worker.load_request import check_request


def request(**fields) -> pb.LoadRequest:
    return pb.LoadRequest(
        **{"pipeline_parallel_size": 1, "tensor_parallel_size": 1, "device": "cpu", "workers_on_host": 1, **fields}
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quantization": "int3"}, "quantization 'int3': this worker knows none, int8, int4, w8a8, w4a8"),
        ({"quantization": "int8", "device": "cuda"}, "quantization int8: the CUDA kernels lack it, use none or a CPU"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype 'fp8': this worker knows auto, int8"),
        (
            {"kv_cache_dtype": "int8", "device": "cuda"},
            "kv_cache_dtype int8: the CUDA kernels lack it, use auto or a CPU",
        ),
        ({"all_reduce": "ring"}, "all_reduce 'ring': this worker knows library, symmetric"),
        (
            {"all_reduce": "symmetric"},
            "all_reduce symmetric: needs GPUs and --communication-backend nccl, use library",
        ),
        ({"communication_backend": "nccl"}, "communication_backend nccl: needs GPUs, use gloo or --device cuda"),
        (
            {"device": "cuda", "communication_backend": "gloo", "tensor_parallel_size": 2},
            "tensor_parallel_size 2: on GPUs the ranks of a worker need nccl, use 1 or --communication-backend nccl",
        ),
        (
            {"deterministic": True, "device": "cuda"},
            "--deterministic on: only the CPU kernels compute in a fixed order, start without a GPU",
        ),
        (
            {"attention_backend": "triton"},
            "attention_backend 'triton': this worker knows auto, orca, torch, flashinfer",
        ),
        ({"runtime_adapters": "/none"}, "--enable-runtime-adapters: the worker has no folder /none"),
        ({"attention_backend": "torch"}, "attention_backend torch: only GPUs have a choice, use auto or a GPU"),
        (
            {"attention_backend": "flashinfer"},
            "attention_backend flashinfer: only GPUs have a choice, use auto or a GPU",
        ),
    ],
)
def test_a_setting_that_a_worker_lacks_is_refused(fields, message):
    check_request(request(quantization="int8"))
    check_request(request(quantization="none", device="cuda"))
    check_request(request(kv_cache_dtype="int8"))
    check_request(request(kv_cache_dtype="auto", device="cuda"))
    check_request(request(deterministic=True))
    check_request(request(attention_backend="auto"))
    check_request(request(attention_backend="torch", device="cuda"))
    check_request(request(attention_backend="flashinfer", device="cuda"))
    check_request(request(device="cuda", communication_backend="gloo"))
    check_request(request(device="cuda", all_reduce="symmetric", tensor_parallel_size=8))
    check_request(request(all_reduce="library"))
    check_request(request(device="cuda", communication_backend="nccl", tensor_parallel_size=2))
    with pytest.raises(ModelError, match=f"^{message}$"):
        check_request(request(**fields))
