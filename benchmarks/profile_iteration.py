"""Where the time of one increment iteration goes: a GPT-2 of 124 M random weights, one partition, in this process.

python benchmarks/profile_iteration.py --dtype bfloat16 --batch-size 8 --context 272
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from common import VOCABULARY, save_model
from orca_protos import engine_pb2 as pb
from orca_worker.stage import Stage

GROUPS = {
    "linear": ("aten::addmm", "aten::mm", "aten::linear", "mkldnn", "aten::matmul"),
    "attention": ("scaled_dot_product", "aten::bmm", "_softmax", "aten::softmax"),
    "K/V gather and store": ("aten::index_select", "aten::index_copy", "aten::copy_", "aten::_to_copy", "aten::slice"),
    "norm, activation, residual": ("layer_norm", "aten::gelu", "aten::add"),
}


def iteration(sequence: int, batch_size: int, context: int, count: int, blocks: int) -> pb.Iteration:
    """`count` tokens for each of the rows; context 0 begins them with `blocks` blocks each."""
    rows = range(batch_size)
    begins = context == 0
    return pb.Iteration(
        epoch=1,
        sequence=sequence,
        row=rows,
        num_tokens=[count] * batch_size,
        context_length=[context] * batch_size,
        token=[(7 * i) % VOCABULARY for i in range(batch_size * count)],
        num_new_blocks=[blocks if begins else 0] * batch_size,
        new_block=range(batch_size * blocks) if begins else [],
        sample=[True] * batch_size,
        admission=[pb.Admission(row=row) for row in rows] if begins else [],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--context", type=int, default=272)
    parser.add_argument("--iterations", type=int, default=20)
    arguments = parser.parse_args()
    batch_size, context = arguments.batch_size, arguments.context
    blocks = -(-(context + 2 * arguments.iterations) // 16)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        request = pb.LoadRequest(
            model_path=folder,
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
            dtype=arguments.dtype,
            device="cpu",
            workers_on_host=1,
        )
        stage = Stage(request, 0, lambda _: None)
    stage.prepare(1, None)
    stage.allocate(batch_size * blocks)
    started = time.perf_counter()
    stage.execute(iteration(1, batch_size, 0, context, blocks))
    print(f"initiation of {batch_size} x {context} tokens: {(time.perf_counter() - started) * 1e3:.0f} ms")

    def run(first: int) -> float:
        started = time.perf_counter()
        for step in range(first, first + arguments.iterations):
            stage.execute(iteration(2 + step, batch_size, context + step, 1, blocks))
        return (time.perf_counter() - started) / arguments.iterations * 1e3

    plain = run(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(arguments.iterations)
    print(f"one increment iteration: {plain:.1f} ms ({torch.get_num_threads()} threads)")
    total = dict.fromkeys([*GROUPS, "other operations"], 0.0)
    for event in profile.key_averages():
        group = next((g for g, keys in GROUPS.items() if any(key in event.key for key in keys)), "other operations")
        total[group] += event.self_cpu_time_total / arguments.iterations / 1e3
    for group, milliseconds in total.items():
        print(f"  {group}: {milliseconds:.1f} ms")
    print(f"  outside of torch (Python, protobuf): {max(0.0, plain - sum(total.values())):.1f} ms, by subtraction")


if __name__ == "__main__":
    main()
