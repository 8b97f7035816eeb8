"""Rules about the workers' device: which settings it excludes."""

from __future__ import annotations

from orca_contract.model_choices import (
    backend_refusal,
    kv_cache_refusal,
    quantization_refusal,
    tensor_parallel_refusal,
)

from orca_operator.rule import Rule

ON_GPUS = "(has(self.worker.device) ? self.worker.device == 'cuda' : self.communication.backend == 'nccl')"
"""Whether the workers compute on GPUs, as `Spec.workers_device`; `self` is the spec."""

DEVICE_RULES = (
    Rule(
        "",
        "!has(self.worker.device) || self.worker.device == 'cuda' || self.communication.backend == 'gloo'",
        "worker.device",
        "cpu needs communication.backend gloo",
        lambda name, spec: not backend_refusal(spec.workers_device, spec.communication.backend),
    ),
    Rule(
        "",
        f"!{ON_GPUS} || self.communication.backend == 'nccl' || self.parallelism.tensorParallelSize == 1",
        "parallelism.tensorParallelSize",
        "must be 1 on GPUs with the gloo backend: use communication.backend nccl",
        lambda name, spec: (
            not tensor_parallel_refusal(
                spec.parallelism.tensor_parallel_size, spec.workers_device, spec.communication.backend
            )
        ),
    ),
    Rule(
        "",
        f"{ON_GPUS} || self.model.dtype != 'float16'",
        "model.dtype",
        "float16 is for GPUs: use bfloat16 or float32 on CPUs",
        lambda name, spec: spec.workers_device == "cuda" or spec.model.dtype != "float16",
    ),
    Rule(
        "",
        f"!{ON_GPUS} || !has(self.model.quantization) || self.model.quantization == 'none'",
        "model.quantization",
        "is for CPUs: use none on GPUs",
        lambda name, spec: not quantization_refusal(spec.model.quantization or "none", spec.workers_device),
    ),
    Rule(
        "",
        f"!{ON_GPUS} || !has(self.model.kvCacheDtype) || self.model.kvCacheDtype == 'auto'",
        "model.kvCacheDtype",
        "int8 is for CPUs: use auto on GPUs",
        lambda name, spec: not kv_cache_refusal(spec.model.kv_cache_dtype or "auto", spec.workers_device),
    ),
)
