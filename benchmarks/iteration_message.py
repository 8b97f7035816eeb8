"""Measures the master's cost of building an Iteration message: decode batches, and batches that admit all requests.

    python benchmarks/iteration_message.py

Reported: microseconds of processor time per message, the minimum of several passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from orca_master.engine.iteration_message import build_iteration
from orca_master.scheduling.batch import Batch, ScheduledRequest
from orca_master.scheduling.request import Request
from orca_master.scheduling.sampling_parameters import SamplingParameters

SIZES = (1, 32, 256)
PASSES, REPEATS = 20, 10
SAMPLING = SamplingParameters(temperature=0.7, top_p=0.9, seed=2**63 + 1, top_k=40, logprobs=2)


def batch(size: int, admitted: bool) -> Batch:
    """Return a batch of `size` requests with one token each."""
    requests = [Request(f"{index}", index, (1, 2, 3, 4), 16, SAMPLING) for index in range(size)]
    rows = enumerate(requests)
    return Batch("", tuple(ScheduledRequest(request, 0, row, 1, 3, (), admitted, True) for row, request in rows))


def least(work: Callable[[], object]) -> float:
    """Return the minimum microseconds of processor time of `work`."""
    best = float("inf")
    for _ in range(PASSES):
        begin = time.thread_time()
        for _ in range(REPEATS):
            work()
        best = min(best, (time.thread_time() - begin) / REPEATS * 1e6)
    return best


def main() -> None:
    """Print a line per size."""
    for size in SIZES:
        plain, admitting = batch(size, admitted=False), batch(size, admitted=True)
        print(
            f"{size} requests: {least(lambda: build_iteration(1, 1, plain)):.1f} us,"  # noqa: B023
            f" all admitted {least(lambda: build_iteration(1, 1, admitting)):.1f} us"  # noqa: B023
        )


if __name__ == "__main__":
    main()
