"""`orca bench engine MODEL`: the paper's microbenchmark (Figure 9), batches of equal requests without a scheduler.

A batch of B requests of the same input length runs from prefill to the last token; nothing else runs, and
partitions are not pipelined (section 6.1). Reported: the time of the whole batch, of its first iteration, and of a
decode iteration.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path
from typing import Any, get_args

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.model_choices import AllReduce, AttentionBackend, Dtype, KvCacheDtype, Quantization
from orca_master.commands.device_options import add_device_options, devices_in_use
from orca_master.commands.local_workers import LocalWorkers
from orca_master.commands.options import ALL_REDUCE
from orca_master.commands.preflight import check, model_command
from orca_master.engine.faults import WorkerLostError
from orca_master.errors import ConfigurationError
from orca_master.scheduling.kv_ledger import blocks_for
from orca_protos.command_line import OneLineParser

from orca_bench.baselines.request_level import RequestLevel, RequestLevelSetup
from orca_bench.circumstances import circumstances, line
from orca_bench.on_engine import EngineSpec, LiveEngine, live_engine
from orca_bench.options import output_file, positive
from orca_bench.traces import synthetic

TIME_LIMIT = 600.0
"""Maximum seconds of one batch."""


def main(argv: list[str]) -> int:
    """Run `orca bench engine`: exit code 0, 1 if the engine failed, 2 for invalid options or input."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not (arguments.model / "config.json").is_file():
        parser.error(f"{arguments.model}: no config.json: a Hugging Face model directory is expected")
    try:
        devices = devices_in_use(arguments)
    except ConfigurationError as error:
        parser.error(str(error))
    sizes = arguments.batch_size
    longest = max(arguments.input_len) + arguments.output_len
    spec = EngineSpec(
        arguments.model.resolve(),
        arguments.pipeline_parallel_size,
        arguments.tensor_parallel_size,
        arguments.dtype,
        *devices,
        max(sizes) * blocks_for(longest) * BLOCK_SIZE,
        max(sizes) * max(arguments.input_len),
        arguments.enforce_eager,
        arguments.quantization,
        arguments.kv_cache_dtype,
        arguments.attention_backend,
        arguments.all_reduce,
        longest,
    )
    facts = circumstances(arguments.seed)
    print(line(facts))
    try:
        check(model_command(spec.model, spec.num_partitions, spec.num_ranks, longest, spec.quantization, spec.device))
        with LocalWorkers(spec.num_partitions) as workers:
            rows = asyncio.run(measure(spec, workers.addresses, arguments))
    except ConfigurationError as error:
        parser.error(str(error))
    except (WorkerLostError, TimeoutError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    if arguments.output is not None:
        arguments.output.write_text(json.dumps({**facts, "rows": rows}, indent=1))
    return 0


async def measure(spec: EngineSpec, addresses: list[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all combinations of batch size and input length; print and return a row for each."""
    rows = []
    print(f"{'batch':>6} {'input':>6} {'whole ms':>10} {'first ms':>10} {'increment ms':>13} {'tokens/s':>9}")
    async with live_engine(spec, addresses) as engine:
        await one_batch(engine, spec, (1, arguments.input_len[0], 2), arguments.seed)  # warm-up
        for inputs in arguments.input_len:
            for size in arguments.batch_size:
                shape = (size, inputs, arguments.output_len)
                runs = [await one_batch(engine, spec, shape, arguments.seed) for _ in range(arguments.repeat)]
                row = {"batch_size": size, "input_len": inputs, "output_len": arguments.output_len, **_median(runs)}
                rows.append(row)
                print(
                    f"{size:>6} {inputs:>6} {row['batch_ms']:>10.1f} {row['first_ms']:>10.1f} "
                    f"{row['increment_ms']:>13.2f} {row['output_throughput']:>9.1f}",
                    flush=True,
                )
    return rows


async def one_batch(engine: LiveEngine, spec: EngineSpec, shape: tuple[int, int, int], seed: int) -> dict[str, float]:
    """Measure one batch of shape (size, input tokens, output tokens)."""
    size, inputs, outputs = shape
    length = blocks_for(inputs + outputs) * BLOCK_SIZE
    scheduling = RequestLevel(RequestLevelSetup(1, size, size, engine.slots, length))
    run = await engine.run(synthetic("homogeneous", size, seed, (inputs, outputs)), scheduling, TIME_LIMIT)
    last = spec.num_partitions - 1
    first = min(span.end for span in run.spans if span.partition == last)
    return {
        "batch_ms": run.seconds * 1e3,
        "first_ms": first * 1e3,
        "increment_ms": (run.seconds - first) / max(1, outputs - 1) * 1e3,
        "output_throughput": size * outputs / run.seconds,
    }


def _median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _parser() -> OneLineParser:
    parser = OneLineParser(prog="orca bench engine", description="Times batches of equal requests without a scheduler.")
    parser.add_argument("model", type=Path, help="Hugging Face model directory")
    parser.add_argument(
        "--batch-size",
        type=positive,
        nargs="+",
        default=[1, 2, 4, 8, 16, 32],
        help="requests per batch; several values make a sweep (1 2 4 8 16 32)",
    )
    parser.add_argument("--input-len", type=positive, nargs="+", default=[32, 128], help="tokens per prompt (32 128)")
    parser.add_argument("--output-len", type=positive, default=32, help="generated tokens per request (32)")
    parser.add_argument("--repeat", type=positive, default=3, help="repetitions; the median is reported (3)")
    parser.add_argument("--pipeline-parallel-size", "-pp", type=positive, default=1, help="inter-layer partitions (1)")
    parser.add_argument("--tensor-parallel-size", "-tp", type=positive, default=1, help="intra-layer ranks (1)")
    parser.add_argument(
        "--dtype", choices=get_args(Dtype), default="auto", help="type of weights and activations (auto)"
    )
    parser.add_argument(
        "--quantization", choices=get_args(Quantization), default="none", help="quantization of linear maps (none)"
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=get_args(KvCacheDtype),
        default="auto",
        help="type of cached keys and values (auto: the activations')",
    )
    parser.add_argument(
        "--attention-backend",
        choices=get_args(AttentionBackend),
        default="auto",
        help="attention of GPUs, see orca serve (auto)",
    )
    add_device_options(parser, default_device="cpu")
    parser.add_argument("--all-reduce", choices=get_args(AllReduce), default="library", help=ALL_REDUCE)
    parser.add_argument(
        "--enforce-eager",
        action="store_true",
        help="disable CUDA graphs and recorded decode iterations",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (0)")
    parser.add_argument(
        "--output", type=output_file, metavar="FILE.json", help="file for all figures, versions, command and seed"
    )
    return parser
