"""Compares all-reduce over the ranks of one worker through shared memory with gloo's, in alternating passes.

    OMP_NUM_THREADS=1 python benchmarks/all_reduce.py [--ranks 2]

Each layer has two all-reduces. Tensors have rows of 768, one per token of a decode batch or a prompt. Reported: the
microseconds per all-reduce on rank 0, the median over the passes of each pass's median. Each rank needs its own core.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from orca_worker.shared_sum import share_memory
from torch.multiprocessing.spawn import spawn

HIDDEN = 768
ROWS = (1, 8, 32, 272, 2048)
DTYPES = (torch.float32, torch.bfloat16)
PASSES, REPEATS, LONGEST_WAIT = 5, 60, 60.0


def microseconds(work: Callable[[], object]) -> float:
    """Return the median time of one call."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def run(rank: int, size: int, store: str) -> None:
    """Run one rank; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    shared = share_memory(None, rank, size, LONGEST_WAIT)
    if shared is None:
        raise SystemExit("all_reduce.py: error: the ranks have no shared memory, or no compiler for the kernels")
    for dtype in DTYPES:
        for rows in ROWS:
            x = torch.zeros(rows, HIDDEN, dtype=dtype)
            times: dict[str, list[float]] = {"shared memory": [], "gloo": []}
            for _ in range(PASSES):
                dist.barrier()
                times["shared memory"].append(microseconds(functools.partial(shared.sum, x)))
                dist.barrier()
                times["gloo"].append(microseconds(functools.partial(dist.all_reduce, x)))
            if rank == 0:
                memory_us, gloo_us = (statistics.median(values) for values in times.values())
                ratios = [gloo / memory for memory, gloo in zip(*times.values(), strict=True)]
                name = str(dtype).removeprefix("torch.")
                ratio = f"{gloo_us / memory_us:.1f} x [{min(ratios):.1f}, {max(ratios):.1f}]"
                print(f"{name} {rows} x {HIDDEN}: {memory_us:.0f} us, gloo {gloo_us:.0f} us, {ratio}")
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (ranks, f"{folder}/store"), nprocs=ranks)


if __name__ == "__main__":
    main()
