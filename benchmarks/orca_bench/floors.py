"""Lower bounds of run times: bytes over bandwidth and FLOPs over rate, both measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from orca_bench.random_models import HIDDEN, LAYERS, VOCABULARY
from orca_bench.traces import TracedRequest


def rates(dtype: str, device: str = "cpu") -> tuple[float, float]:
    """Measure bytes per second of summing a large tensor, and FLOP per second of a large matrix product."""
    kind = getattr(torch, dtype)
    big = torch.randn(8192, 8192, device=device)
    rows, width = (512, HIDDEN) if device == "cpu" else (4096, 4096)
    left = torch.randn(rows, width, dtype=kind, device=device)
    right = torch.randn(4 * width, width, dtype=kind, device=device)

    def best(work: Callable[[], object], repeats: int) -> float:
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        return min(times)

    read = best(big.sum, 10)  # torch's own matrix-vector product in bfloat16 reads at half that rate
    product = best(lambda: torch.nn.functional.linear(left, right), 30)
    return big.nbytes / read, 2 * rows * width * 4 * width / product


def floor_seconds(
    trace: Sequence[TracedRequest], batch_size: int, dtype: str, device: str = "cpu"
) -> tuple[float, float]:
    """Return two lower bounds in seconds for the 110 M models with this batch size, without attention.

    For a decode iteration the first bound counts reading the weights, the second the maximum of reading and matrix
    products. The prefill yields the first token; its last layer needs only keys and values, 2 of 12 H^2 weights.
    """
    bandwidth, rate = rates(dtype, device)
    parameters = LAYERS * 12 * HIDDEN**2
    used = parameters + VOCABULARY * HIDDEN
    read, products = used * getattr(torch, dtype).itemsize / bandwidth, 2 * used * batch_size / rate
    iterations = sum(request.output_length - 1 for request in trace) / batch_size
    of_prompts = 2 * (parameters - 10 * HIDDEN**2) * sum(request.input_length for request in trace) / rate
    return iterations * read + of_prompts, iterations * max(read, products) + of_prompts
