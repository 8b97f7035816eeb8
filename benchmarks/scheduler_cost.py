"""Measures the master's cost of an iteration of answers: scheduling, its message, and the commit of the result.

    python benchmarks/scheduler_cost.py

Reported: microseconds per request and iteration, the minimum of several passes, for one partition
(batches chosen ahead, scheduling/lookahead.py) and for two.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict, deque

from orca_master.engine.iteration_message import build_iteration
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import PagedLedger
from orca_master.scheduling.lookahead import look_ahead
from orca_master.scheduling.prefix_cache import PrefixCache
from orca_master.scheduling.prompt_budget import PromptBudget
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig

SIZES = (1, 8, 64, 256)
PASSES, ITERATIONS = 20, 20
PROMPT, ANSWER = tuple(range(40)), 2 * PASSES * ITERATIONS
NUM_BLOCKS = 2**16
PIPELINE = "0"


def scheduler_of(size: int, num_partitions: int) -> Scheduler:
    """Return a scheduler on which `size` requests per partition have arrived."""
    is_pipelined = num_partitions > 1
    config = SchedulerConfig(
        size, num_partitions, token_budget=2048, keeps_spare_iteration=is_pipelined, looks_ahead=not is_pipelined
    )
    count = size * num_partitions
    scheduler = Scheduler(config, RequestPool(count, 10**9))
    scheduler.prompt_budget = PromptBudget(beside_answers=512, alone=2048)
    scheduler.add_pipeline(PIPELINE, PagedLedger(NUM_BLOCKS, PrefixCache()))
    sampling = SamplingParameters(temperature=0.7)
    for index in range(count):
        scheduler.pool.add(Request(str(index), index, (index, *PROMPT), ANSWER, sampling))
    return scheduler


def measure(size: int, num_partitions: int) -> dict[str, float]:
    """Return microseconds per request and iteration of answers, by part."""
    scheduler = scheduler_of(size, num_partitions)
    in_flight: deque[Batch] = deque()
    best: dict[str, float] = {}
    while len(scheduler.pool) or any(not request.generated for request in scheduler.admitted):
        step(scheduler, in_flight, defaultdict(float))
    for _ in range(PASSES):
        spent: dict[str, float] = defaultdict(float)
        num_requests = sum(step(scheduler, in_flight, spent) for _ in range(ITERATIONS))
        for part, seconds in spent.items():
            best[part] = min(best.get(part, math.inf), seconds / num_requests * 1e6)
    return best


def step(scheduler: Scheduler, in_flight: deque[Batch], spent: dict[str, float]) -> int:
    """Fill the stages with iterations, and commit the oldest one; add the seconds of each part to `spent`.

    Return the number of its requests.
    """
    while True:
        begun = time.perf_counter()
        proposal = scheduler.select(PIPELINE)
        if not proposal and scheduler.config.looks_ahead and len(in_flight) == 1:
            proposal = look_ahead(scheduler, in_flight[-1])
        selected = time.perf_counter()
        spent["select"] += selected - begun
        if not proposal:
            break
        batch = scheduler.dispatch(PIPELINE, proposal)
        dispatched = time.perf_counter()
        build_iteration(1, 1, batch)
        spent["dispatch"] += dispatched - selected
        spent["message"] += time.perf_counter() - dispatched
        in_flight.append(batch)
    batch = in_flight.popleft()
    tokens = [7] * sum(entry.num_sampled for entry in batch.requests)
    begun = time.perf_counter()
    scheduler.commit(batch, tokens)
    spent["commit"] += time.perf_counter() - begun
    return len(batch.requests)


def main() -> None:
    """Print a line per number of partitions and size."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    for num_partitions in (1, 2):
        for size in SIZES:
            parts = measure(size, num_partitions)
            described = ", ".join(f"{part} {parts[part]:.2f}" for part in ("select", "dispatch", "message", "commit"))
            total = sum(parts.values())
            print(f"{num_partitions} partition(s), {size} requests per iteration: {total:.2f} us ({described})")


if __name__ == "__main__":
    main()
