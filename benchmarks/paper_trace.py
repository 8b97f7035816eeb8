"""The paper's trace on one machine: `orca serve` over HTTP beside `transformers` with request-level batches.

Requests (input U(32, 512), output U(1, 128), greedy, end-of-sequence off) are offered all at once to a GPT-2-shaped
model of random weights. Both systems run on the same cores, one after the other, and generate the same tokens.
Beside them stands the floor: weights read once per decode iteration at the measured bandwidth, prompt FLOPs at the
measured rate of a large matrix product.

    python benchmarks/paper_trace.py --requests 64 --batch-sizes 8 32 --dtypes float32 bfloat16 --output result.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY = 32_000
READY_SECONDS = 120


@dataclass(frozen=True)
class TraceRequest:
    """Token ids of a prompt and the number of tokens to generate."""

    prompt: list[int]
    output: int


def paper_trace(count: int, seed: int) -> list[TraceRequest]:
    """Returns `count` requests of the paper's section 6.2."""
    dice = random.Random(seed)
    return [
        TraceRequest([dice.randrange(VOCABULARY) for _ in range(dice.randint(32, 512))], dice.randint(1, 128))
        for _ in range(count)
    ]


def save_model(path: Path) -> None:
    """Writes a GPT-2 of 12 layers, hidden size 768, 32,000 tokens, random weights."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=1024, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(path)


async def offer(url: str, trace: list[TraceRequest]) -> None:
    """Sends every request at once and waits for all answers."""

    async def ask(client: httpx.AsyncClient, request: TraceRequest) -> None:
        body = {"prompt": request.prompt, "max_tokens": request.output, "temperature": 0, "ignore_eos": True}
        answer = (await client.post("/v1/completions", json={**body, "return_token_ids": True})).json()
        assert len(answer["choices"][0]["token_ids"]) == request.output

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        await asyncio.gather(*(ask(client, request) for request in trace))


def run_orca(model: Path, trace: list[TraceRequest], batch_size: int, dtype: str, options: list[str]) -> float:
    """Seconds that `orca serve` takes for the trace, start-up not counted."""
    command = [sys.executable, "-m", "orca_master.cli", "serve", str(model), "--port", "0", "--dtype", dtype]
    command += ["--max-batch-size", str(batch_size), "--disable-log-requests", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        url = next(line.split(" on ")[1].strip() for line in server.stderr if "ready: " in line)
        asyncio.run(offer(url, trace[:2]))  # warm-up
        started = time.perf_counter()
        asyncio.run(offer(url, trace))
        return time.perf_counter() - started
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(READY_SECONDS)


@torch.inference_mode()
def run_transformers(path: Path, trace: list[TraceRequest], batch_size: int, dtype: str) -> float:
    """Seconds that `generate` takes: batches in arrival order, left padding, each until its longest output."""
    model = GPT2LMHeadModel.from_pretrained(path, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None

    def batch(requests: list[TraceRequest]) -> None:
        longest = max(len(request.prompt) for request in requests)
        ids = torch.tensor([[0] * (longest - len(request.prompt)) + request.prompt for request in requests])
        rows = [[0] * (longest - len(request.prompt)) + [1] * len(request.prompt) for request in requests]
        most = max(request.output for request in requests)
        model.generate(ids, attention_mask=torch.tensor(rows), max_new_tokens=most, do_sample=False, pad_token_id=0)

    batch(trace[:2])
    started = time.perf_counter()
    for first in range(0, len(trace), batch_size):
        batch(trace[first : first + batch_size])
    return time.perf_counter() - started


def machine(dtype: str) -> tuple[float, float]:
    """Returns bytes per second of reading large matrices, and FLOP per second of their product."""
    kind = getattr(torch, dtype)
    big, vector = torch.randn(8192, 8192, dtype=kind), torch.randn(1, 8192, dtype=kind)
    left, right = torch.randn(512, 768, dtype=kind), torch.randn(3072, 768, dtype=kind)

    def best(work, repeats: int) -> float:
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        return min(times)

    read = best(lambda: torch.nn.functional.linear(vector, big), 10)
    product = best(lambda: torch.nn.functional.linear(left, right), 30)
    return big.nbytes / read, 2 * 512 * 768 * 3072 / product


def floor(path: Path, trace: list[TraceRequest], batch_size: int, dtype: str) -> float:
    """Seconds that no engine of this batch size can be under, by the two rates of `machine`."""
    bandwidth, rate = machine(dtype)
    parameters = 12 * 12 * 768**2
    width = getattr(torch, dtype).itemsize
    iterations = sum(request.output for request in trace) / batch_size
    weights = (parameters + VOCABULARY * 768) * width
    return iterations * weights / bandwidth + 2 * parameters * sum(len(request.prompt) for request in trace) / rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--systems", nargs="+", default=["orca", "transformers"])
    parser.add_argument(
        "--orca-options", nargs="*", default=[], metavar="OPTION", help="for orca serve, without dashes"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    trace = paper_trace(arguments.requests, arguments.seed)
    tokens = sum(request.output for request in trace)
    print(
        f"{len(trace)} requests, {sum(len(r.prompt) for r in trace)} prompt and {tokens} generated tokens", flush=True
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpt2"
        save_model(path)
        for dtype in arguments.dtypes:
            for batch_size in arguments.batch_sizes:
                row = {
                    "dtype": dtype,
                    "batch_size": batch_size,
                    "floor": tokens / floor(path, trace, batch_size, dtype),
                }
                if "orca" in arguments.systems:
                    options = [f"--{option}" for option in arguments.orca_options]
                    row["orca"] = tokens / run_orca(path, trace, batch_size, dtype, options)
                if "transformers" in arguments.systems:
                    row["transformers"] = tokens / run_transformers(path, trace, batch_size, dtype)
                rows.append(row)
                print(json.dumps(row), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps({"threads": arguments.threads, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
