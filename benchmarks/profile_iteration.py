"""Profiles a prefill and a decode iteration by operation: one partition, in this process.

    OMP_NUM_THREADS=1 python benchmarks/profile_iteration.py --dtype bfloat16 --batch-size 8 --context 330

The floor of a decode iteration: one read of the weights and of the batch's keys and values, at the measured bandwidth.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as in a rank

import torch
from google.protobuf.json_format import ParseDict
from orca_bench.circumstances import circumstances, line
from orca_bench.floors import rates
from orca_bench.random_models import HIDDEN, LAYERS, VOCABULARY, save_model
from orca_contract.model_choices import KvCacheDtype, Quantization
from orca_kernels.cpu.heap import keep_freed_memory
from orca_kernels.cpu.kernels import CpuAttention, CpuKernels
from orca_kernels.cpu.packed_linear import PackedLinear
from orca_kernels.cpu.panel_linear import PanelLinear
from orca_kernels.quantization import BITS
from orca_protos import engine_pb2 as pb
from orca_worker.decode_graphs import DecodeGraphs
from orca_worker.rows import RowTable
from orca_worker.sampler import TorchSampler
from orca_worker.stage import Stage

TIMED: list[tuple[Any, str, str]] = [
    *((kind, method, "linear") for kind in (PanelLinear, PackedLinear) for method in ("__call__", "gelu_tanh", "add")),
    (CpuAttention, "__call__", "attention"), (CpuAttention, "store", "K/V store"), (CpuKernels, "layer_norm", "norms"),
    (CpuKernels, "rms_norm", "norms"), (CpuKernels, "rotate", "rotary embedding"),
    (CpuKernels, "silu_and_multiply", "activation"), (TorchSampler, "sample", "sampling"),
    (RowTable, "batch", "Iteration to tensors"), (DecodeGraphs, "run", "recorded layers"),
]  # fmt: skip


def iteration(
    sequence: int, batch_size: int, context: int, count: int, blocks: int, sampling: pb.Sampling | None = None
) -> pb.Iteration:
    """Return an iteration with `count` tokens per row; `blocks` above 0 admits the rows with that many blocks each."""
    rows = range(batch_size)
    return pb.Iteration(
        epoch=1,
        sequence=sequence,
        row=rows,
        num_tokens=[count] * batch_size,
        context_length=[context] * batch_size,
        token=[(7 * i) % VOCABULARY for i in range(batch_size * count)],
        num_new_blocks=[blocks] * batch_size,
        new_block=range(batch_size * blocks),
        sample=[True] * batch_size,
        admission=[pb.Admission(row=row, prompt_length=count, sampling=sampling) for row in rows] if blocks else [],
    )


def instrument(spent: defaultdict[str, float]) -> None:
    """Wrap every operation in TIMED to add its seconds to `spent`."""

    def timed(plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            result = plain(*arguments, **options)
            spent[name] += time.perf_counter() - begin
            return result

        return call

    for owner, method, name in TIMED:
        setattr(owner, method, timed(getattr(owner, method), name))


def show(title: str, seconds: float, spent: defaultdict[str, float], count: int) -> None:
    """Print the milliseconds of one iteration, in total and by operation."""
    print(f"{title}: {seconds / count * 1e3:.1f} ms")
    for name, value in sorted(spent.items(), key=lambda entry: -entry[1]):
        print(f"  {name}: {value / count * 1e3:.2f} ms")
    print(f"  other (mostly Python): {(seconds - sum(spent.values())) / count * 1e3:.2f} ms")


def main() -> None:
    """Print both profiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--family", default="gpt2", choices=("gpt2", "llama"))
    parser.add_argument("--quantization", default="none", choices=get_args(Quantization))
    parser.add_argument("--kv-cache-dtype", default="auto", choices=get_args(KvCacheDtype))
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--context", type=int, default=330)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument(
        "--enforce-eager", action="store_true", help="no recorded decode iterations, whose layers are one entry"
    )
    parser.add_argument(
        "--sampling", default="{}", help="parameters of all requests: fields of Sampling in engine.proto, as JSON"
    )
    arguments = parser.parse_args()
    keep_freed_memory()  # as in a rank
    sampling = ParseDict(json.loads(arguments.sampling), pb.Sampling())
    print(line(circumstances(None)))
    size, context, count = arguments.batch_size, arguments.context, arguments.iterations
    blocks = -(-(context + count) // 16)
    spent: defaultdict[str, float] = defaultdict(float)
    instrument(spent)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), arguments.family)
        request = pb.LoadRequest(
            model_path=folder, pipeline_parallel_size=1, tensor_parallel_size=1, dtype=arguments.dtype, device="cpu",
            workers_on_host=1, enforce_eager=arguments.enforce_eager, quantization=arguments.quantization,
            kv_cache_dtype=arguments.kv_cache_dtype,
        )  # fmt: skip
        stage = Stage(request, 0, lambda _: None)
    stage.prepare(1)
    stage.allocate(size * blocks)
    stage.execute(iteration(1, size, 0, context, blocks, sampling))()  # oneDNN prepares its products
    spent.clear()
    begin = time.perf_counter()
    stage.execute(iteration(2, size, 0, context, blocks, sampling))()
    show(f"prompts of {size} x {context} tokens", time.perf_counter() - begin, spent, 1)
    stage.execute(iteration(3, size, context, 1, 0, sampling))()  # the first decode iteration is recorded
    if stage.graphs_refused:
        raise SystemExit(f"error: these would be times without recorded decode iterations: {stage.graphs_refused}")
    spent.clear()
    begin = time.perf_counter()
    for step in range(count):
        stage.execute(iteration(4 + step, size, context + step, 1, 0, sampling))()
    show(f"increment of {size} requests, {torch.get_num_threads()} threads", time.perf_counter() - begin, spent, count)
    width = getattr(torch, arguments.dtype).itemsize
    cached = size * (context + count / 2) * LAYERS * 2 * HIDDEN
    of_cache = width if arguments.kv_cache_dtype == "auto" else 1
    weights = LAYERS * 12 * HIDDEN**2 + VOCABULARY * HIDDEN
    bandwidth, _ = rates(arguments.dtype)
    of_weights = BITS[arguments.quantization] / 8 if arguments.quantization in BITS else width
    floor = (weights * of_weights + cached * of_cache) / bandwidth
    print(f"floor of the increment: {floor * 1e3:.1f} ms ({bandwidth / 1e9:.1f} GB/s)")


if __name__ == "__main__":
    main()
