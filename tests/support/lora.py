"""Adapters in PEFT's format with random weights, and the model into which one is merged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.checkpoints import make_model

ATTENTION = ("q_proj", "v_proj", "o_proj")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GPT2 = ("c_attn", "c_proj", "c_fc")


def make_adapter(
    folder: Path, variant: str, seed: int, rank: int, targets: tuple[str, ...], **config: Any
) -> torch.nn.Module:
    """Write an adapter of a variant's linear maps `targets`; return the variant with the adapter merged into it."""
    return merge_adapter(make_model(variant), folder, seed, rank, targets, **config)


def merge_adapter(
    model: torch.nn.Module, folder: Path, seed: int, rank: int, targets: tuple[str, ...], **config: Any
) -> torch.nn.Module:
    """Write an adapter of a model's linear maps `targets`; merge it into the model, and return the model."""
    fields = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, **config}
    scale = fields["lora_alpha"] / (math.sqrt(rank) if fields.get("use_rslora") else rank)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in targets:
            continue
        transposed = type(module).__name__ == "Conv1D"
        outputs, inputs = module.weight.shape[::-1] if transposed else module.weight.shape
        down = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
        up = torch.randn(outputs, rank, generator=generator) * 0.3 * rank**-0.5
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
        with torch.no_grad():
            product = scale * (up @ down)
            module.weight.add_(product.t() if transposed else product)
    assert tensors, f"the model has none of {targets}"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**fields, "target_modules": list(targets)}))
    return model


def fill_with_nan(folder: Path) -> None:
    """Replace one tensor of an adapter by NaN."""
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors[min(tensors)].fill_(math.nan)
    save_file(tensors, folder / "adapter_model.safetensors")
