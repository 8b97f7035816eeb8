"""Measures how the cost of an iteration grows, and compares it with the expected law.

    python benchmarks/cost_growth.py [--dtype bfloat16]

batch     decode iteration of 1 to 256 requests of 128 tokens: a + b x batch (one read of the weights, then FLOPs)
context   decode iteration of 8 requests of 64 to 4,096 tokens: a + b x context (keys and values are read)
pool      select, dispatch and commit of 32 requests with 10 to 10,000 waiting requests: constant
master    CPU time of the whole master per iteration for batches of 1 to 256, with a model of negligible cost:
          a + b x batch (every request gets a token)

The coefficients of the law are a least-squares fit to the same rows; `off` is the maximum relative error of a row.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import parser, save
from orca_bench.random_models import LAYERS, VOCABULARY, save_model
from orca_master.llm import LLM, SamplingParams
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_protos import engine_pb2 as pb
from orca_worker.stage import Stage
from profile_iteration import iteration
from transformers import GPT2Config, GPT2LMHeadModel

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096)
POOLS = (10, 100, 1000, 10_000)
MASTER_BATCHES = (1, 8, 32, 128, 256)
REPEATS = 12


def increments(path: Path, dtype: str, shapes: list[tuple[int, int]]) -> list[float]:
    """Return the median milliseconds of a decode iteration in this process for each (batch, context)."""
    request = pb.LoadRequest(
        model_path=str(path), pipeline_parallel_size=1, tensor_parallel_size=1, dtype=dtype, device="cpu",
        workers_on_host=1,
    )  # fmt: skip
    stage = Stage(request, 0, lambda _: None)
    blocks = {shape: -(-(shape[1] + REPEATS) // 16) for shape in shapes}
    stage.allocate(max(batch * blocks[batch, context] for batch, context in shapes))
    medians = []
    for batch, context in shapes:
        stage.prepare(1)
        # The content of the cache does not affect the cost: admit the rows with one token, treat the rest as computed.
        stage.execute(iteration(1, batch, 0, 1, blocks[batch, context]))()
        times = []
        for step in range(REPEATS):
            begin = time.perf_counter()
            stage.execute(iteration(2 + step, batch, context + step, 1, 0))()
            times.append(time.perf_counter() - begin)
        medians.append(statistics.median(times[2:]) * 1e3)
    return medians


def scheduling(waiting: int) -> float:
    """Return the microseconds of select, dispatch and commit of an iteration with `waiting` requests in the pool."""
    pool = RequestPool(1 << 30, 1 << 60)
    scheduler = Scheduler(SchedulerConfig(32, 1, 2048), pool)
    scheduler.add_pipeline("0", KvLedger(32 * 40))
    for index in range(32 + waiting):
        pool.add(Request(str(index), index, (0,) * 64, 512))
    times = []
    for _ in range(60):
        begin = time.perf_counter()
        batch = scheduler.dispatch("0", scheduler.select("0"))
        scheduler.commit(batch, [7] * sum(scheduled.samples for scheduled in batch.requests))
        times.append(time.perf_counter() - begin)
    return statistics.median(times[5:]) * 1e6


def master(path: Path, batch: int) -> float:
    """Return the master's CPU milliseconds per iteration: scheduler, protobuf, gRPC, delivery; no HTTP."""
    with LLM(str(path), dtype="float32", max_batch_size=batch, kv_slots=batch * 128, prefix_caching=False) as llm:
        prompts, tokens = [[10 + index % 50] * 8 for index in range(batch)], 100
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        llm.generate(prompts, sampling)
        begin = time.process_time()
        llm.generate(prompts, sampling)
        return (time.process_time() - begin) / tokens * 1e3


def fitted(amounts: tuple[int, ...], costs: list[float]) -> dict[str, Any]:
    """Fit a + b x amount by least squares of the relative errors."""
    rows, weights = np.array([(1.0, amount) for amount in amounts]), 1 / np.array(costs)
    (a, b), *_ = np.linalg.lstsq(rows * weights[:, None], np.ones(len(costs)), rcond=None)
    off = max(abs(a + b * amount - cost) / cost for amount, cost in zip(amounts, costs, strict=True))
    return {"a": float(a), "b": float(b), "off": float(off)}


def show(title: str, amounts: tuple[int, ...], costs: list[float], unit: str) -> dict[str, Any]:
    """Print a table and return its figures."""
    law = fitted(amounts, costs)
    print(f"{title}: {unit} = {law['a']:.3g} + {law['b']:.3g} x {title}, error at most {law['off']:.0%}")
    for amount, cost in zip(amounts, costs, strict=True):
        print(f"  {amount:>6} {cost:>9.2f} {unit}, law {law['a'] + law['b'] * amount:.2f}")
    return {"amounts": amounts, "costs": costs, "unit": unit, **law}


def main() -> None:
    """Print and write the tables."""
    arguments = parser(__doc__ or "").parse_args()
    results: dict[str, Any] = {"dtype": arguments.dtype, "threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "large", Path(folder) / "small"
        save_model(large, "llama", positions=4352)
        GPT2LMHeadModel(
            GPT2Config(n_layer=1, n_embd=32, n_head=1, vocab_size=256, n_positions=256, eos_token_id=0, bos_token_id=0)
        ).save_pretrained(small)
        print(f"{LAYERS} layers, vocabulary {VOCABULARY}, {arguments.dtype}, {torch.get_num_threads()} threads")
        costs = increments(large, arguments.dtype, [(batch, 128) for batch in BATCHES])
        results["batch"] = show("batch", BATCHES, costs, "ms")
        costs = increments(large, arguments.dtype, [(8, context) for context in CONTEXTS])
        results["context"] = show("context", CONTEXTS, costs, "ms")
        results["pool"] = show("pool", POOLS, [scheduling(waiting) for waiting in POOLS], "us")
        results["master"] = show("master", MASTER_BATCHES, [master(small, batch) for batch in MASTER_BATCHES], "ms")
    save(arguments.folder, "cost-growth", arguments.seed, results)


if __name__ == "__main__":
    main()
