"""Compares the fused kernels with plain torch, call by call, on more data than the caches hold.

    OMP_NUM_THREADS=1 taskset --cpu-list 1 python benchmarks/kernels.py
    python benchmarks/kernels.py --device cuda

Attention: 12 heads of size 64 (on a GPU 32 heads of size 128) over scattered blocks, on a CPU also of a K/V cache of
integers, which is compared with the cache of the activations' type, on a GPU also by torch's library and by FlashInfer
(orca_kernels/cuda/torch_attention.py, flashinfer_attention.py; a plan of FlashInfer's is made once, in the warm-up).
Linear layers, on a CPU: those of a model with hidden size 768, several copies one after another, like the layers of a
model. Operations on single rows: repeated on the same data. Reported: microseconds per call, the minimum of several
interleaved passes, and the rates that follow from the bytes and FLOPs of orca_bench/estimates.py.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as in a rank

import numpy as np
import torch
from attention_cases import library_attentions, ragged
from orca_bench import estimates
from orca_bench.circumstances import circumstances, line
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.cpu.heap import keep_freed_memory
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.library import load
from orca_kernels.cpu.packed_linear import PackedLinear, packs
from orca_kernels.cuda.modules import resident_blocks
from orca_kernels.cuda.work import Shape, splits_of, tiles_of
from orca_kernels.interface import (
    AnyPools,
    Attention,
    AttentionForm,
    Int8Pools,
    Kernels,
    LinearMap,
    Norm,
    Pools,
    Rotation,
)
from orca_kernels.quantization import BITS, quantize
from orca_kernels.reference import ReferenceKernels, ReferenceLinear
from orca_kernels.select import kernels_for

COPIES, PASSES = 12, 8
BATCHES = {
    "8 increments at 280": [(280, 1)] * 8, "32 increments at 280": [(280, 1)] * 32,
    "one increment at 4,000": [(4000, 1)], "one prompt of 272": [(0, 272)],
    "a prompt of 272 beside 8 increments": [(0, 272)] + [(280, 1)] * 8,
}  # fmt: skip
MAPS = ((768, 2304), (768, 768), (768, 3072), (3072, 768), (768, 32_000))
ROWS = (1, 8, 32, 272)


def least(works: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Return the minimum microseconds of each function, called alternately."""
    best = [float("inf")] * len(works)
    for number in range(PASSES + 1):
        for index, work in enumerate(works):
            begin = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number:  # the first pass is a warm-up
                best[index] = min(best[index], (time.perf_counter() - begin) * 1e6)
    return best


def random_integers(num_blocks: int, heads: int, head_dim: int) -> Int8Pools:
    """Return pools of random integers, whose keys and values are about as large as normally distributed ones."""
    keys, values, *scales = Int8Pools.zeros(num_blocks, heads, head_dim, torch.device("cpu"))
    for pool in (keys, values):
        pool.random_(-127, 128)
    return Int8Pools(keys, values, *(scale.fill_(1 / 64) for scale in scales))


@torch.inference_mode()
def attention(dtype: torch.dtype, device: torch.device) -> None:
    """Print a row for each batch."""
    heads, head_dim = (12, 64) if device.type == "cpu" else (32, 128)
    fused, plain = kernels_for(device, dtype), ReferenceKernels()
    form = AttentionForm(head_dim, scale=0.125)
    fused_attention, plain_attention = (kernels.attention(form, dtype) for kernels in (fused, plain))
    libraries = library_attentions(form, (heads, heads), dtype, device)
    for name, parts in BATCHES.items():
        batch, num_blocks = ragged(parts, device)
        layers: list[AnyPools] = [
            filled(fused_attention.new_pools(num_blocks, heads, dtype, device))
            for _ in range(max(2, COPIES * 8 // len(parts) // 8))
        ]
        query = torch.randn(int(batch.query_start[-1]), heads, head_dim).to(device, dtype)

        def over(attend: Attention, layers: list[AnyPools] = layers) -> None:
            for pools in layers:
                attend(query, pools, batch)  # noqa: B023

        works = [partial(over, fused_attention), partial(over, plain_attention)]
        others = []
        for library_name, library in libraries.items():
            others.append(f"{library_name}'s library")
            pages = [filled(library.new_pools(num_blocks, heads, dtype, device)) for _ in layers]
            works.append(partial(over, library, pages))
        if device.type == "cpu":
            others.append("int8 cache")
            of_integers = fused.attention(replace(form, kv_cache_dtype="int8"), dtype)
            works.append(partial(over, of_integers, [random_integers(num_blocks, heads, head_dim) for _ in layers]))
        fused_us, torch_us, *other_us = (value / len(layers) for value in least(works, device))
        estimate = estimates.attention(parts, heads, heads, head_dim, dtype.itemsize)
        rates = estimate.beside(fused_us)
        if device.type == "cuda":
            rates += partial_results(parts, heads, head_dim)
        print(
            f"attention, {name}: {fused_us:.0f} us ({rates}), torch {torch_us:.0f} us, {torch_us / fused_us:.1f} x"
            + "".join(f", {n} {us:.0f} us, {us / fused_us:.2f} x" for n, us in zip(others, other_us, strict=True)),
            flush=True,
        )


def filled(pools: AnyPools) -> AnyPools:
    """Return pools of elements of the activations' type with random numbers."""
    return type(pools)(*(pool.normal_() for pool in pools))


def partial_results(parts: Sequence[tuple[int, int]], heads: int, head_dim: int) -> str:
    """Return the bytes of the partial results of split contexts, which attention on a GPU writes and reads."""
    shape, (contexts, counts) = Shape(1, heads, 64, 0, resident_blocks(head_dim)), np.array(parts).T
    tiles, tile_rows = tiles_of(counts, shape)
    splits = splits_of(tiles, tile_rows, counts, contexts, shape)
    estimate = estimates.partial_results(list(zip(splits, tile_rows, strict=True)), heads, head_dim)
    return f", besides {estimate.bytes / 1e6:.2f} MB of partial results" if estimate.bytes else ""


@torch.inference_mode()
def linear(dtype: torch.dtype) -> None:
    """Print a row for each layer and number of rows: our product, those of oneDNN and torch, and of integers.

    Without oneDNN's packed product of this type on this processor its column is left out.
    """
    makers: dict[str, Callable[[torch.Tensor, torch.Tensor], LinearMap]] = {"torch": ReferenceLinear}
    if packs(dtype):
        makers = {"oneDNN packed": PackedLinear, **makers}
    for inputs, outputs in MAPS:
        copies = max(1, COPIES * 2304 // outputs) if outputs > 2304 else COPIES
        weights = [torch.randn(outputs, inputs, dtype=dtype) for _ in range(copies)]
        bias = torch.randn(outputs, dtype=dtype)
        fused = CpuKernels(load(), dtype)
        panels = [fused.linear(weight.clone(), bias) for weight in weights]
        others = {name: [make(weight.clone(), bias) for weight in weights] for name, make in makers.items()}
        for quantization in BITS:
            integers = [quantize(weight, quantization) for weight in weights]
            others[quantization] = [fused.quantized_linear(weight, bias, dtype) for weight in integers]
        for rows in ROWS:
            x = torch.randn(rows, inputs, dtype=dtype)
            works = [lambda maps=maps, x=x: [each(x) for each in maps] for maps in (panels, *others.values())]
            fused_us, *other_us = (value / copies for value in least(works, torch.device("cpu")))
            compared = [f"{name} {us:.0f} us, {us / fused_us:.2f} x" for name, us in zip(others, other_us, strict=True)]
            estimate = estimates.linear(rows, inputs, outputs, dtype.itemsize)
            print(
                f"linear {inputs} x {outputs}, {rows} rows: {fused_us:.0f} us ({estimate.beside(fused_us)}), "
                f"{', '.join(compared)}",
                flush=True,
            )


@torch.inference_mode()
def rows(dtype: torch.dtype, device: torch.device) -> None:
    """Print a row for each operation on single rows and number of rows, with the sizes of Llama 3 8B on a GPU."""
    hidden, inner, heads, head_dim = (768, 3072, 12, 64) if device.type == "cpu" else (4096, 14_336, 32, 128)
    fused, plain = kernels_for(device, dtype), ReferenceKernels()
    for count in ROWS:
        x, gate_up = (torch.randn(count, size).to(device, dtype) for size in (hidden, 2 * inner))
        weight, bias = (torch.randn(hidden).to(device, dtype) for _ in range(2))
        query, angle = torch.randn(count, heads, head_dim).to(device, dtype), torch.rand(count, head_dim).to(device)
        width = dtype.itemsize
        form, pools = AttentionForm(head_dim, 0.1), Pools.zeros(count // BLOCK_SIZE + 1, heads, head_dim, dtype, device)
        attentions = {kernels: kernels.attention(form, dtype) for kernels in (fused, plain)}
        slots = torch.arange(count, device=device)
        norm, residual = Norm("rms_norm", (weight, 1e-6)), x.clone()
        rotated = ([torch.cat((query, query), dim=1)], query, Rotation(angle, angle))
        operations: dict[str, tuple[estimates.Estimate, Callable[[Kernels], object]]] = {
            "layer norm": (
                estimates.norm(count, hidden, width, 2),
                lambda kernels: kernels.layer_norm(x, weight, bias, 1e-5),  # noqa: B023
            ),
            "root mean square norm": (
                estimates.norm(count, hidden, width),
                lambda kernels: kernels.rms_norm(x, weight, 1e-6),  # noqa: B023
            ),
            "residual and its root mean square norm": (
                estimates.added_norm(count, hidden, width),
                lambda kernels: kernels.add_and_norm(residual, x, None, norm),  # noqa: B023
            ),
            "gated activation": (
                estimates.gated_activation(count, inner, width),
                lambda kernels: kernels.silu_and_multiply(gate_up),  # noqa: B023
            ),
            "rotation": (
                estimates.rotation(count, heads, head_dim, width),
                lambda kernels: kernels.rotate(query, angle, angle),  # noqa: B023
            ),
            "rotation and store": (
                estimates.rotation_and_store(count, heads, heads, head_dim, width),
                lambda kernels: kernels.rotate_and_store(*rotated, attentions[kernels], pools, slots),  # noqa: B023
            ),
            "store of keys and values": (
                estimates.store(count, heads, head_dim, width),
                lambda kernels: attentions[kernels].store(query, query, pools, slots),  # noqa: B023
            ),
        }
        for name, (estimate, work) in operations.items():
            fused_us, torch_us = least([partial(work, fused), partial(work, plain)], device)
            print(
                f"{name}, {count} rows: {fused_us:.0f} us ({estimate.beside(fused_us)}), torch {torch_us:.0f} us, "
                f"{torch_us / fused_us:.1f} x",
                flush=True,
            )


def main() -> None:
    """Print the tables for both data types."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = torch.device(parser.parse_args().device)
    keep_freed_memory()  # as in a rank
    print(f"{line(circumstances(0))}; {torch.get_num_threads()} threads")
    for dtype in (torch.float32, torch.bfloat16):
        print(f"-- {dtype}")
        attention(dtype, device)
        rows(dtype, device)
        if device.type == "cpu":
            linear(dtype)


if __name__ == "__main__":
    main()
