"""Times that no engine can be under: bytes over bandwidth and FLOPs over rate, both measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from orca_bench.random_models import HIDDEN, LAYERS, VOCABULARY
from orca_bench.traces import TracedRequest


def rates(dtype: str, device: str = "cpu") -> tuple[float, float]:
    """Return bytes per second of summing up a large tensor, and FLOP per second of a large product, here."""
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
    """Seconds that no engine of this batch size can be under for the 110 M models, by the two rates; no attention.

    Of an iteration of increments the first counts the reading of the weights, the second their products where these
    take longer. A prompt gives the first token; in the last layer only keys and values of its tokens are needed, 2 of
    12 H^2.
    """
    bandwidth, rate = rates(dtype, device)
    parameters = LAYERS * 12 * HIDDEN**2
    used = parameters + VOCABULARY * HIDDEN
    read, products = used * getattr(torch, dtype).itemsize / bandwidth, 2 * used * batch_size / rate
    iterations = sum(request.output_length - 1 for request in trace) / batch_size
    of_prompts = 2 * (parameters - 10 * HIDDEN**2) * sum(request.input_length for request in trace) / rate
    return iterations * read + of_prompts, iterations * max(read, products) + of_prompts
