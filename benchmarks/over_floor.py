"""Compares decode and prefill times with their lower bounds on the device, for random models of three sizes.

    python benchmarks/over_floor.py --device cuda --models gpt2-124m llama-1.3b llama-7b

increment   decode time; floor: one read of weights, keys and values, at the rate of a sum over a large tensor
prompt      prefill rate, as a fraction of the FLOP rate of a large matrix product

One partition in this process; medians for increments. `--enforce-eager` disables CUDA graphs and recorded decodes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
from orca_bench.circumstances import circumstances, line
from orca_bench.estimates import increments, parameters, prompt
from orca_bench.floors import rates
from orca_contract.model_choices import AttentionBackend, attention_refusal
from orca_protos import engine_pb2 as pb
from orca_worker.model_config import read_model_config
from orca_worker.stage import Stage
from profile_iteration import iteration
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig, PreTrainedModel

POSITIONS = 4096
SHARED: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
MODELS: dict[str, PretrainedConfig] = {
    "gpt2-124m": GPT2Config(**SHARED, n_positions=POSITIONS),
    "llama-1.3b": LlamaConfig(
        **SHARED, hidden_size=2048, intermediate_size=5632, num_hidden_layers=24, num_attention_heads=16,
        max_position_embeddings=POSITIONS,
    ),
    "llama-7b": LlamaConfig(
        **SHARED, hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32, num_attention_heads=32,
        max_position_embeddings=POSITIONS,
    ),
}  # fmt: skip
INCREMENTS = 30


def timed(stage: Stage, work: pb.Iteration) -> float:
    """Return the seconds of one iteration, including reading its result."""
    begin = time.perf_counter()
    stage.execute(work)()
    return time.perf_counter() - begin


def measure(path: Path, arguments: argparse.Namespace) -> None:
    """Print both tables of one model."""
    config, width = read_model_config(path), getattr(torch, arguments.dtype).itemsize
    bandwidth, rate = rates(arguments.dtype, arguments.device)
    weights = sum(parameters(config)) * width
    print(f"{bandwidth / 1e9:.0f} GB/s, {rate / 1e12:.2f} TFLOP/s, {weights / 1e9:.2f} GB of weights")
    request = pb.LoadRequest(
        model_path=str(path), pipeline_parallel_size=1, tensor_parallel_size=1, dtype=arguments.dtype,
        device=arguments.device, workers_on_host=1, enforce_eager=arguments.enforce_eager,
        attention_backend=arguments.attention_backend,
    )  # fmt: skip
    stage = Stage(request, 0, lambda _: None)
    print(f"kernels: {stage.facts().kernels}")
    blocks = -(-(arguments.context + INCREMENTS + 2) // 16)
    of_prompt = -(-arguments.prompt // 16)
    for size in arguments.batch_sizes:
        stage.prepare(1)
        stage.allocate(max(max(arguments.batch_sizes) * blocks, of_prompt))
        timed(stage, iteration(1, size, 0, 1, blocks))  # the content of the cache does not affect the cost
        times = [timed(stage, iteration(2 + n, size, arguments.context + n, 1, 0)) for n in range(INCREMENTS)]
        if stage.graphs_refused:
            raise SystemExit(f"error: these would be times without decode graphs: {stage.graphs_refused}")
        floor = increments(config, size, arguments.context, width).bytes / bandwidth
        median = statistics.median(times[3:])
        print(
            f"increment of {size:>3}: {median * 1e3:8.2f} ms, {median / floor:5.2f} x its floor of {floor * 1e3:.2f} ms"
        )
    times = []
    for sequence in range(4):
        stage.prepare(1)
        times.append(timed(stage, iteration(sequence, 1, 0, arguments.prompt, of_prompt)))
    speed, flops = arguments.prompt / min(times), prompt(config, arguments.prompt, width).flops
    print(f"prompt of {arguments.prompt}: {speed:.0f} tokens/s, {flops / min(times) / rate:.0%} of the peak FLOP rate")


def main() -> None:
    """Measure the models one by one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["gpt2-124m"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--context", type=int, default=330, help="context length of each request before the increments")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--attention-backend", choices=get_args(AttentionBackend), default="auto")
    arguments = parser.parse_args()
    if refusal := attention_refusal(arguments.attention_backend, arguments.device):
        parser.error(f"--attention-backend {refusal}")
    print(line(circumstances(None)))
    for name in arguments.models:
        print(f"{name}, {arguments.dtype}, {arguments.device}")
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            make: Callable[..., PreTrainedModel] = AutoModelForCausalLM.from_config
            make(MODELS[name], dtype=torch.bfloat16).save_pretrained(folder)
            measure(Path(folder), arguments)


if __name__ == "__main__":
    main()
