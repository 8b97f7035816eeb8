"""`transformers` models whose linear maps round weights and inputs to integers and back, as w8a8 and w4a8 do."""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import TYPE_CHECKING

import torch
from orca_kernels.kv_quantization import dequantize_rows, quantize_rows
from orca_kernels.quantization import W8A8, quantize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROW_PARALLEL = {"o_proj", "down_proj", "c_proj"}
"""Maps whose inputs are divided over tensor-parallel ranks: each rank's part of a row has its own scale."""


def round_inputs(model: PreTrainedModel, ranks: int = 1, plain: Container[str] = (), group: int | None = None) -> None:
    """Make the linear maps of a model round their inputs, whole rows or groups of a row.

    `plain`: last names of maps that do not.
    """
    for name, module in linear_maps(model):
        if name in plain:
            continue
        parts = ranks if name in ROW_PARALLEL else 1
        module.register_forward_pre_hook(partial(_with_rounded_input, parts, group))


def round_weights(model: PreTrainedModel, quantization: str = W8A8) -> None:
    """Round the weights of all linear maps; a tied embedding is not rounded."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    with torch.no_grad():
        for _, module in linear_maps(model):
            weight = module.weight if isinstance(module, torch.nn.Linear) else module.weight.t()
            weight.copy_(quantize(weight, quantization).dequantized(weight.dtype))


def linear_maps(model: PreTrainedModel) -> list[tuple[str, torch.nn.Module]]:
    """Return linear maps with their last names."""
    return [
        (name.rpartition(".")[2], module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"  # [inputs, outputs]
    ]


def _with_rounded_input(
    parts: int, group: int | None, module: torch.nn.Module, arguments: tuple[torch.Tensor]
) -> tuple[torch.Tensor]:
    (x,) = arguments
    of_ranks = x.chunk(parts, dim=-1)
    rounded = [each for part in of_ranks for each in part.split(group or part.shape[-1], dim=-1)]
    return (torch.cat([dequantize_rows(*quantize_rows(each)) for each in rounded], dim=-1),)
