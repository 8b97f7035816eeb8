"""Attention over batch sizes, contexts and heads: bytes or FLOPs per second beside those of a copy and a product.

    python benchmarks/attention_sweep.py --device cuda
    python benchmarks/attention_sweep.py --batch 1 8 --context 330 --prompt 512 --heads 8/1    (on a CPU, to rehearse)

Increments: BATCH requests of CONTEXT tokens each, for every number of query and key/value heads of size 128, as many
layers as exceed a GPU's caches, on a GPU inside a CUDA graph: ORCA's kernels, torch's library, and FlashInfer without a
graph. Prompts: one request of PROMPT tokens, also by torch's scaled_dot_product_attention. A case whose keys and values
exceed MEMORY is left out, by name. Printed: microseconds per layer, GB/s of the least bytes (increments) or TFLOP/s of
the least FLOPs (prompts; orca_bench/estimates.py), and their fraction of a copy of 4 GiB, or of a large product.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from attention_cases import Parts, library_attentions, ragged
from orca_bench import estimates
from orca_bench.circumstances import circumstances, line
from orca_bench.floors import rates
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.interface import Attention, AttentionForm
from orca_kernels.select import kernels_for
from orca_worker.decode_graphs import CudaGraphRecorder
from torch.nn import functional

HEAD_DIM = 128
COPY_BYTES = 4 << 30
CACHE_BYTES = 256 << 20
"""Keys and values that no cache of a GPU holds."""
MOST_LAYERS = 64
REPETITIONS = 7


def heads(text: str) -> tuple[int, int]:
    """Return the numbers of query heads and of key/value heads of N/G."""
    queries, _, keys = text.partition("/")
    return int(queries), int(keys)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the median time of a call, after two that warm up."""
    times = []
    for _ in range(REPETITIONS + 2):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def copy_rate(device: torch.device) -> float:
    """Return the bytes per second that a copy reads and writes."""
    size = COPY_BYTES if device.type == "cuda" else COPY_BYTES // 8
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    return 2 * size / seconds(partial(torch.empty_like(source).copy_, source), device)


def attentions(num_heads: tuple[int, int], dtype: torch.dtype, device: torch.device) -> dict[str, Attention]:
    """Return ORCA's attention, and on a GPU those of the libraries that can be had."""
    form = AttentionForm(HEAD_DIM, HEAD_DIM**-0.5)
    orca = kernels_for(device, dtype).attention(form, dtype)
    return {"orca": orca, **library_attentions(form, num_heads, dtype, device)}


def layer_seconds(attend: Attention, parts: Parts, num_heads: tuple[int, int], device: torch.device) -> float:
    """Return the time of one layer, in a graph if the device and the attention have one."""
    dtype = torch.bfloat16
    batch, num_blocks = ragged(parts, device)
    of_layer = 2 * num_blocks * BLOCK_SIZE * num_heads[1] * HEAD_DIM * dtype.itemsize
    is_prompt = len(batch.slots) > len(parts)
    count = 1 if is_prompt else min(MOST_LAYERS, -(-CACHE_BYTES // of_layer))
    layers = [attend.new_pools(num_blocks, num_heads[1], dtype, device) for _ in range(count)]
    query = torch.randn(len(batch.slots), num_heads[0], HEAD_DIM, device=device, dtype=dtype)

    def run() -> torch.Tensor:
        for pools in layers:
            output = attend(query, pools, batch)
        return output

    work: Callable[[], object] = run
    if device.type == "cuda" and attend.recordable and not is_prompt:
        _, work = CudaGraphRecorder()(run)
    return seconds(work, device) / len(layers)


def prompt_by_torch(num_tokens: int, num_heads: tuple[int, int], device: torch.device) -> float:
    """Return the time of torch's own attention over dense keys and values."""
    shape = [(1, count, num_tokens, HEAD_DIM) for count in (num_heads[0], num_heads[1], num_heads[1])]
    query, key, value = (torch.randn(each, device=device, dtype=torch.bfloat16) for each in shape)
    grouped = num_heads[0] != num_heads[1]
    attend = partial(functional.scaled_dot_product_attention, query, key, value, is_causal=True, enable_gqa=grouped)
    return seconds(attend, device)


@torch.inference_mode()
def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--context", type=int, nargs="+", default=[330, 4096, 32_768])
    parser.add_argument("--prompt", type=int, nargs="+", default=[512, 4096, 32_768])
    parser.add_argument("--heads", type=heads, nargs="+", default=[(32, 32), (32, 8), (8, 1)], help="N/G")
    parser.add_argument("--memory", type=float, default=16.0, help="GiB of keys and values of a case, at most (16)")
    arguments = parser.parse_args()
    device, width = torch.device(arguments.device), torch.bfloat16.itemsize
    copied, (_, product) = copy_rate(device), rates("bfloat16", arguments.device)
    print(f"{line(circumstances(0))}; copy {copied / 1e9:.0f} GB/s, product {product / 1e12:.2f} TFLOP/s")
    for num_heads in arguments.heads:
        found = attentions(num_heads, torch.bfloat16, device)
        cases: list[Parts] = [[(context, 1)] * size for size in arguments.batch for context in arguments.context]
        cases += [[(0, length)] for length in arguments.prompt]
        for parts in cases:
            is_prompt, label = parts[0][0] == 0, f"{num_heads[0]}/{num_heads[1]} heads, "
            label += f"prompt of {parts[0][1]}" if is_prompt else f"{len(parts)} increments at {parts[0][0]}"
            estimate = estimates.attention(parts, num_heads[0], num_heads[1], HEAD_DIM, width)
            if estimate.bytes > arguments.memory * 2**30:
                print(f"{label}: left out, {estimate.bytes / 2**30:.0f} GiB")
                continue
            times = {name: layer_seconds(attend, parts, num_heads, device) for name, attend in found.items()}
            if is_prompt:
                times["sdpa"] = prompt_by_torch(parts[0][1], num_heads, device)
            best, unit, work = (product, "TFLOP/s", estimate.flops) if is_prompt else (copied, "GB/s", estimate.bytes)
            scale = 1e12 if is_prompt else 1e9
            print(
                f"{label}: "
                + ", ".join(
                    f"{name} {spent * 1e6:.0f} us ({work / spent / scale:.2f} {unit}, {work / spent / best:.0%})"
                    for name, spent in times.items()
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
