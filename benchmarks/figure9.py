"""The paper's Figure 9, measured: the time of a batch of equal requests, 32 or 128 input and 32 output tokens.

    python benchmarks/figure9.py [--batch-sizes 1 2 4 8 16 32]

Compares ORCA's engine without a scheduler (as in `orca bench engine`) with an engine that also batches attention. The
paper uses FasterTransformer, which has no CPU backend: this script uses `transformers` with a static batch.
"""

from __future__ import annotations

import functools
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from common import draw, finish, model, on_engine, parser, save
from orca_bench.engine import one_batch
from orca_bench.on_engine import EngineSpec, LiveEngine
from transformers import GPT2LMHeadModel

INPUTS = (32, 128)
OUTPUTS = 32


async def orca_times(engine: LiveEngine, spec: EngineSpec, sizes: list[int], seed: int, repeat: int) -> dict[str, Any]:
    """Return the milliseconds per batch on ORCA's engine, by input length."""
    await one_batch(engine, spec, (1, INPUTS[0], 2), seed)
    curves: dict[str, list[float]] = {}
    for inputs in INPUTS:
        for size in sizes:
            runs = [await one_batch(engine, spec, (size, inputs, OUTPUTS), seed) for _ in range(repeat)]
            curves.setdefault(f"orca ({inputs})", []).append(statistics.median(run["batch_ms"] for run in runs))
    return curves


@torch.inference_mode()
def transformers_times(path: Path, dtype: str, sizes: list[int], repeat: int) -> dict[str, list[float]]:
    """Return the milliseconds per batch of `transformers`, by input length."""
    network: Any = GPT2LMHeadModel.from_pretrained(path, dtype=getattr(torch, dtype))
    network.eval()
    network.generation_config.eos_token_id = None

    def batch(size: int, inputs: int) -> float:
        prompt = torch.randint(10, 1000, (size, inputs))
        begin = time.perf_counter()
        network.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=OUTPUTS, do_sample=False, pad_token_id=0
        )
        return (time.perf_counter() - begin) * 1e3

    batch(1, INPUTS[0])
    return {
        f"transformers ({inputs})": [statistics.median(batch(size, inputs) for _ in range(repeat)) for size in sizes]
        for inputs in INPUTS
    }


def main() -> None:
    """Measure, and write the figure and its data."""
    options = parser(__doc__ or "")
    options.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16, 32])
    options.add_argument("--repeat", type=int, default=1)
    options.add_argument("--partitions", type=int, nargs="+", default=[1, 2])
    arguments = options.parse_args()
    sizes, repeat = arguments.batch_sizes, arguments.repeat
    slots, longest = max(sizes) * 160, max(sizes) * max(INPUTS)
    results: dict[str, dict[str, list[float]]] = {}
    with model() as path:
        transformers = transformers_times(path, arguments.dtype, sizes, repeat)
        for partitions in arguments.partitions:
            spec = EngineSpec(path, partitions, dtype=arguments.dtype, slots=slots, longest_iteration=longest)
            measure = functools.partial(orca_times, spec=spec, sizes=sizes, seed=arguments.seed, repeat=repeat)
            title = f"{partitions} partition{'s' * (partitions > 1)}, not pipelined"
            results[title] = {**on_engine(spec, measure), **transformers}
    figure, panels = draw(list(results))
    for title, curves in results.items():
        for name, times in curves.items():
            panels[title].plot(sizes, times, marker="o", label=name, linestyle="--" if "transformers" in name else "-")
        panels[title].set_xlabel("batch size")
        panels[title].set_ylabel("ms per batch")
        panels[title].set_ylim(bottom=0)
        panels[title].legend()
        print(title, {name: [round(time) for time in times] for name, times in curves.items()})
    finish(figure, arguments.folder, "figure9")
    save(arguments.folder, "figure9", arguments.seed, {"dtype": arguments.dtype, "batch_sizes": sizes, **results})


if __name__ == "__main__":
    main()
