"""Measures adapters (LoRA): tokens/s of a batch with one, and of a batch with several, beside a merged model.

    python benchmarks/adapters.py [--batch 1 8] [--rank 16] [--family llama] [--generated 64] [--rounds 5]
        [-- OPTIONS OF serve]

Two servers take turns on the same cores, with a model of 110 M random weights of the FAMILY: one has three adapters of
RANK for every linear map, the other a model into which the first adapter is merged, and no adapters. BATCH requests at
a time, of 64 prompt tokens and GENERATED more: all for the model, all for one adapter, and in turn for the model and
each adapter. Printed: medians of tokens/s, and the ratio of the rounds to the merged model, median with the smallest
and the largest, from nine rounds on also the confidence interval of the median.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from orca_bench.burst import alternate
from orca_bench.circumstances import circumstances, line
from orca_bench.random_models import save_model
from orca_bench.rounds import ratio
from orca_bench.servers import serve, split, unwind_on_sigterm
from orca_bench.traces import random_tokens
from safetensors.torch import load_file, save_file

PROMPT = 64
"""Prompt tokens of a request."""
NAMES = ("a", "b", "c")


def save_adapter(folder: Path, model: Path, rank: int) -> None:
    """Write an adapter with random weights for every linear map of the model's layers."""
    tensors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        if (".layers." in name or ".h." in name) and weight.dim() == 2:
            outputs, inputs = weight.shape if ".layers." in name else weight.shape[::-1]  # gpt2's maps are transposed
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, inputs) * 0.01
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(outputs, rank) * 0.01
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))


def save_merged(folder: Path, model: Path, adapter: Path) -> None:
    """Write the model with an adapter of `save_adapter` merged into it."""
    tensors, weights = load_file(adapter / "adapter_model.safetensors"), load_file(model / "model.safetensors")
    for name, weight in weights.items():
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        if (down := tensors.get(f"{prefix}.lora_A.weight")) is not None:
            update = tensors[f"{prefix}.lora_B.weight"] @ down
            weight.add_(update if ".layers." in name else update.t())
    shutil.copytree(model, folder)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def bodies(models: Sequence[str], batch: int, generated: int, seed: int) -> list[dict[str, Any]]:
    """Return `batch` requests of `generated` tokens each, which choose the models in turn."""
    source = random.Random(f"adapters {seed}")
    prompts = [random_tokens(source, PROMPT) for _ in range(batch)]
    return [
        {"model": name, "prompt": prompt, "max_tokens": generated, "temperature": 0}
        for name, prompt in zip(itertools.cycle(models), prompts, strict=False)
    ]


def main() -> None:
    """Print the figures."""
    own, options = split(sys.argv[1:], ())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="requests at once (1 8)")
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters (16)")
    parser.add_argument("--family", choices=["llama", "gpt2"], default="llama", help="of the model (llama)")
    parser.add_argument("--generated", type=int, default=64, help="generated tokens of a request (64)")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(own)
    unwind_on_sigterm()
    print(line(circumstances(0)))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        model, merged = Path(folder) / "model", Path(folder) / "merged"
        save_model(model, arguments.family)
        modules = []
        for name in NAMES:
            save_adapter(Path(folder) / name, model, arguments.rank)
            modules.append(f"{name}={Path(folder) / name}")
        save_merged(merged, model, Path(folder) / NAMES[0])
        plain = servers.enter_context(serve(merged, options))[1]
        adapted = servers.enter_context(serve(model, [*options, "--lora-modules", *modules]))[1]
        for batch in arguments.batch:
            kinds = {"the model": [model.name], "one adapter": ["a"], "the model and three": [model.name, *NAMES]}
            for kind, models in kinds.items():
                requests = {
                    url: partial(bodies, names, batch, arguments.generated)
                    for url, names in ((adapted, models), (plain, [merged.name]))
                }
                rates = alternate(requests, arguments.rounds)
                print(
                    f"batch {batch}, {kind}: {statistics.median(rates[adapted]):.1f} tokens/s, merged "
                    f"{statistics.median(rates[plain]):.1f}: {ratio(rates[adapted], rates[plain])}"
                )


if __name__ == "__main__":
    main()
