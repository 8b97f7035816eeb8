"""Writes GPTQ, AWQ and compressed-tensors checkpoints from the formats' descriptions, and reads them back bit by bit.

Writer and reader share no code with the worker, nor with each other: the reader computes every weight from the stored
tensors alone, with plain loops.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Scheme:
    """How the maps of a checkpoint are quantised."""

    kind: str
    """gptq, gptq_v2, awq, pack-quantized or int-quantized."""
    bits: int = 4
    group: int = 128
    """-1: all inputs; 0, for compressed-tensors: one scale for all outputs."""
    symmetric: bool = True
    act_order: bool = False
    integer_activations: bool = False
    """For compressed-tensors: maps quantise their input, row by row."""

    @property
    def method(self) -> str:
        """`quant_method` in config.json."""
        return "gptq" if self.kind.startswith("gptq") else "awq" if self.kind == "awq" else "compressed-tensors"

    def config(self) -> dict[str, Any]:
        """Return the value of `quantization_config`."""
        if self.kind.startswith("gptq"):
            return {
                "quant_method": "gptq", "bits": self.bits, "group_size": self.group, "desc_act": self.act_order,
                "sym": self.symmetric, "checkpoint_format": self.kind, "damp_percent": 0.01, "dynamic": None,
            }  # fmt: skip
        if self.kind == "awq":
            return {"quant_method": "awq", "bits": 4, "group_size": self.group, "zero_point": True, "version": "gemm"}
        weights = {
            "num_bits": self.bits, "type": "int", "symmetric": self.symmetric, "dynamic": False,
            "strategy": "tensor" if self.group == 0 else "channel" if self.group < 0 else "group",
            "group_size": self.group if self.group > 0 else None, "actorder": "group" if self.act_order else None,
        }  # fmt: skip
        activations = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
        group = {
            "targets": ["Linear"], "weights": weights, "output_activations": None,
            "input_activations": activations if self.integer_activations else None,
        }  # fmt: skip
        return {
            "quant_method": "compressed-tensors", "format": self.kind, "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None, "sparsity_config": {},
        }  # fmt: skip


@dataclass(frozen=True)
class Coded:
    """A map as unsigned integers, [outputs][inputs]; zero points and scales are [outputs][groups]."""

    numbers: list[list[int]]
    zeros: list[list[int]]
    scales: torch.Tensor
    group_of: list[int]


def coded(weight: torch.Tensor, scheme: Scheme, generator: torch.Generator) -> Coded:
    """Round a weight [outputs, inputs] to integers; act-order gives the groups random inputs."""
    outputs, inputs = weight.shape
    size = scheme.group if scheme.group > 0 else inputs
    group_of = torch.arange(inputs) // size
    if scheme.act_order:
        group_of = group_of[torch.randperm(inputs, generator=generator)]
    largest, middle = (1 << scheme.bits) - 1, 1 << (scheme.bits - 1)
    groups = int(group_of.max()) + 1
    numbers = torch.zeros(outputs, inputs, dtype=torch.long)
    zeros = torch.full((outputs, groups), middle)
    scales = torch.zeros(outputs, groups)
    for group in range(groups):
        columns = (group_of == group).nonzero().flatten()
        values = weight[:, columns]
        if scheme.symmetric:
            step = values.abs().amax(1) / (middle - 1) if scheme.group else weight.abs().amax().expand(outputs) / middle
        else:
            # In groups of eight bits, the range is such that no integer less its zero point needs nine.
            low, high = values.amin(1).clamp(max=-1e-3), values.amax(1).clamp(min=1e-3)
            step = (high - low) / largest if scheme.bits == 4 else 2 * torch.maximum(-low, high) / (largest - 9)
            zeros[:, group] = (-low / step).round().clamp(1, largest) if scheme.bits == 4 else middle - 3
        scales[:, group] = step.half().float()
        numbers[:, columns] = (
            ((values / scales[:, group, None]).round() + zeros[:, group, None]).clamp(0, largest).long()
        )
    return Coded(numbers.tolist(), zeros.tolist(), scales, group_of.tolist())


def words(rows: list[list[int]], bits: int, order: tuple[int, ...] = ()) -> torch.Tensor:
    """Pack each row of integers into int32, the first integer lowest; `order`: which integer comes next."""
    count = 32 // bits
    packed = []
    for integers in rows:
        row = [*integers, *[0] * (-len(integers) % count)]
        packed_row = []
        for first in range(0, len(row), count):
            word = 0
            for place in range(count):
                word |= row[first + (order[place] if order else place)] << (bits * place)
            packed_row.append(word - (1 << 32) if word >> 31 else word)
        packed.append(packed_row)
    return torch.tensor(packed, dtype=torch.int32)


def turned(rows: list[list[int]]) -> list[list[int]]:
    """Return columns as rows."""
    return [list(column) for column in zip(*rows, strict=True)]


def written(code: Coded, scheme: Scheme) -> dict[str, torch.Tensor]:
    """Return the tensors of a map."""
    bits, scales = scheme.bits, code.scales.half()
    if scheme.kind.startswith("gptq"):
        less = 1 if scheme.kind == "gptq" else 0
        zeros = [[zero - less for zero in row] for row in turned(code.zeros)]
        return {
            "qweight": words(code.numbers, bits).t().contiguous(),
            "qzeros": words(zeros, bits),
            "scales": scales.t().contiguous(),
            "g_idx": torch.tensor(code.group_of, dtype=torch.int32),
        }
    if scheme.kind == "awq":
        return {
            "qweight": words(turned(code.numbers), bits, AWQ_ORDER),
            "qzeros": words(turned(code.zeros), bits, AWQ_ORDER),
            "scales": scales.t().contiguous(),
        }
    middle = 1 << (bits - 1)
    tensors = {"weight_scale": scales if scheme.group else scales[0]}
    if scheme.kind == "int-quantized":
        tensors["weight"] = torch.tensor(code.numbers).sub(middle).to(torch.int8)
        if not scheme.symmetric:
            tensors["weight_zero_point"] = torch.tensor(code.zeros).sub(middle).to(torch.int8)
        return tensors
    tensors["weight_packed"] = words(code.numbers, bits)
    tensors["weight_shape"] = torch.tensor([len(code.numbers), len(code.numbers[0])])
    if not scheme.symmetric:
        tensors["weight_zero_point"] = words(turned(code.zeros), bits).t().contiguous()
    if scheme.act_order:
        tensors["weight_g_idx"] = torch.tensor(code.group_of, dtype=torch.int32)
    return tensors


def bits_of(word: int, first: int, count: int) -> int:
    """Return `count` bits of a word of 32, from bit `first` on."""
    return word % (1 << 32) // (1 << first) % (1 << count)


def dequantised(tensors: dict[str, torch.Tensor], scheme: Scheme, outputs: int, inputs: int) -> torch.Tensor:
    """Compute W [outputs, inputs] in float32 from stored tensors, element by element."""
    lists = {name: tensor.tolist() for name, tensor in tensors.items()}
    size = scheme.group if scheme.group > 0 else inputs
    group_of = lists.get("g_idx") or lists.get("weight_g_idx") or [place // size for place in range(inputs)]
    rows = []
    for output in range(outputs):
        factors = [
            (zero(lists, scheme, output, group), scale(lists, output, group)) for group in range(max(group_of) + 1)
        ]
        rows.append(
            [
                (number(lists, scheme, output, place) - factors[group][0]) * factors[group][1]
                for place, group in enumerate(group_of)
            ]
        )
    return torch.tensor(rows)


def number(lists: dict[str, Any], scheme: Scheme, output: int, place: int) -> int:
    """Return the unsigned integer of a weight."""
    bits, per = scheme.bits, 32 // scheme.bits
    if scheme.kind.startswith("gptq"):
        return bits_of(lists["qweight"][place // per][output], place % per * bits, bits)
    if scheme.kind == "awq":
        return bits_of(lists["qweight"][place][output // 8], AWQ_ORDER.index(output % 8) * 4, 4)
    if scheme.kind == "pack-quantized":
        return bits_of(lists["weight_packed"][output][place // per], place % per * bits, bits)
    return lists["weight"][output][place] + (1 << (bits - 1))


def zero(lists: dict[str, Any], scheme: Scheme, output: int, group: int) -> int:
    """Return the unsigned zero point of an output's group."""
    bits, per = scheme.bits, 32 // scheme.bits
    if scheme.kind.startswith("gptq"):
        stored = bits_of(lists["qzeros"][group][output // per], output % per * bits, bits)
        return stored + 1 if scheme.kind == "gptq" else stored
    if scheme.kind == "awq":
        return bits_of(lists["qzeros"][group][output // 8], AWQ_ORDER.index(output % 8) * 4, 4)
    if "weight_zero_point" not in lists:
        return 1 << (bits - 1)
    if scheme.kind == "pack-quantized":
        return bits_of(lists["weight_zero_point"][output // per][group], output % per * bits, bits)
    return lists["weight_zero_point"][output][group] + (1 << (bits - 1))


def scale(lists: dict[str, Any], output: int, group: int) -> float:
    """Return the scale of an output's group."""
    if "scales" in lists:
        return lists["scales"][group][output]
    rows = lists["weight_scale"]
    return rows[output][group] if isinstance(rows[0], list) else rows[0]


def quantise_checkpoint(
    path: Path, scheme: Scheme, transposed: bool, plain: Container[str] = (), head: bool = False
) -> dict[str, torch.Tensor]:
    """Quantise the linear maps of a checkpoint's layers in place; return the values that its plain weights now have.

    `transposed`: weights are stored as [inputs, outputs]. `plain`: last names of the maps that stay plain. `head`: the
    map to logits is quantised, too.
    """
    generator = torch.Generator().manual_seed(0)
    stored, values = {}, {}
    for name, tensor in load_file(path / "model.safetensors").items():
        scope, _, kind = name.rpartition(".")
        is_map = tensor.dim() == 2 and (".layers." in name or ".h." in name or (head and scope == "lm_head"))
        if kind != "weight" or not is_map or scope.rpartition(".")[2] in plain:
            stored[name] = tensor
            continue
        weight = tensor.t() if transposed else tensor
        tensors = written(coded(weight.float(), scheme, generator), scheme)
        value = dequantised(tensors, scheme, *weight.shape)
        values[name] = value.t().contiguous() if transposed else value
        stored |= {f"{scope}.{each}": value for each, value in tensors.items()}
    save_file(stored, path / "model.safetensors")
    edit_config(path, lambda config: config | {"quantization_config": scheme.config()})
    return values


def edit_config(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write config.json anew."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(change(config)))
