"""compressed-tensors, which llm-compressor writes: integers of weights only, or of activations, too. Imports no torch.

Tensors of a map in the format `pack-quantized`: `weight_packed` [outputs, inputs / n] int32 with n integers per word,
each plus 2^(bits - 1), the last word padded; `weight_scale` [outputs, groups]; `weight_shape` [2], outputs and inputs;
without symmetry `weight_zero_point` [outputs / n, groups], packed along the outputs; with act-order `weight_g_idx`
[inputs], -1 if unused. In the format `int-quantized`: `weight` [outputs, inputs] int8, `weight_scale`, and without
symmetry `weight_zero_point` [outputs, groups] int8. Activations that are quantised dynamically, row by row (w8a8), add
no tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from orca_worker.config_schema import ModelFile
from orca_worker.errors import ModelError
from orca_worker.quantized_checkpoints.gptq import groups_of_inputs
from orca_worker.quantized_checkpoints.weight_format import (
    WHOLE_ROW,
    GroupSize,
    MapPart,
    MapTensor,
    WeightFormat,
    errors_of,
    refuse,
)
from orca_worker.weight_headers import FLOATS

if TYPE_CHECKING:
    import torch

    from orca_worker.quantized_checkpoints.integers import StoredIntegers

PACKED, BYTES = "pack-quantized", "int-quantized"
STATUSES = ("compressed", "frozen")
"""Of published checkpoints: older ones are called frozen."""
STRATEGIES = ("group", "channel", "tensor")
STRATEGIES_OF_W8A8 = ("channel", "tensor")


class NumbersFile(ModelFile):
    """`weights` or `input_activations` of a group of modules."""

    num_bits: int
    type: str = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: GroupSize | None = None
    dynamic: Any = None


class GroupFile(ModelFile):
    """A group of `config_groups`: modules that are quantised alike."""

    weights: NumbersFile | None = None
    input_activations: NumbersFile | None = None
    output_activations: Any = None
    format: str | None = None


class CompressedTensorsFile(ModelFile):
    """`quantization_config` of compressed-tensors."""

    config_groups: Annotated[dict[str, GroupFile], Field(min_length=1)]
    format: str = "dense"
    quantization_status: str = "compressed"
    kv_cache_scheme: Any = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: Any = None

    def weight_format(self) -> WeightFormat:
        """Return the format; raise ModelError for what is not supported."""
        if self.quantization_status not in STATUSES:
            raise refuse("quantization_status", self.quantization_status, f"{' and '.join(STATUSES)} are")
        for field in ("kv_cache_scheme", "transform_config"):
            if getattr(self, field):
                raise refuse(field, getattr(self, field), "null is")
        if self.sparsity_config and (self.sparsity_config.get("format") or "dense") != "dense":
            raise refuse("sparsity_config.format", self.sparsity_config["format"], "dense is")
        formats = [self._group_format(f"config_groups.{name}", group) for name, group in self.config_groups.items()]
        if any(each != formats[0] for each in formats):
            raise refuse("config_groups", list(self.config_groups), "the same weights in all groups are")
        return formats[0]

    def _group_format(self, field: str, group: GroupFile) -> WeightFormat:
        if group.output_activations:
            raise refuse(f"{field}.output_activations", group.output_activations, "null is")
        weights, name, activations = group.weights, group.format or self.format, group.input_activations
        if weights is None:
            raise ModelError(f"{field}.weights is missing")
        if name not in (PACKED, BYTES):
            raise refuse("format", name, f"{PACKED} and {BYTES} are")
        if weights.type != "int":
            raise refuse(f"{field}.weights.type", weights.type, "int is")
        if weights.dynamic:
            raise refuse(f"{field}.weights.dynamic", weights.dynamic, "false is")
        strategy = weights.strategy or ("channel" if weights.group_size in (None, WHOLE_ROW) else "group")
        if strategy not in STRATEGIES:
            raise refuse(f"{field}.weights.strategy", strategy, f"{', '.join(STRATEGIES)} are")
        if activations is not None:
            _check_w8a8(field, strategy, weights, activations, name)
        if strategy == "group" and weights.group_size is None:
            raise ModelError(f"{field}.weights.group_size is missing")
        group_size = weights.group_size if strategy == "group" and weights.group_size is not None else WHOLE_ROW
        make = W8A8Format if activations is not None else PackedFormat if name == PACKED else BytesFormat
        with errors_of(f"{field}.weights"):
            return make(
                bits=weights.num_bits,
                group_size=group_size,
                symmetric=weights.symmetric,
                per_tensor=strategy == "tensor",
            )


def _check_w8a8(field: str, strategy: str, weights: NumbersFile, activations: NumbersFile, name: str) -> None:
    """Raise ModelError unless weights and activations are symmetric integers of eight bits with scales per output and,
    dynamically, per token. `strategy`, `name`: strategy and format of the weights.
    """
    place = f"{field}.input_activations"
    for key, value, supported in (("type", activations.type, "int"), ("num_bits", activations.num_bits, 8)):
        if value != supported:
            raise refuse(f"{place}.{key}", value, f"{supported} is")
    if activations.dynamic is not True:
        raise refuse(f"{place}.dynamic", activations.dynamic, "true is (a scale for each token)")
    if activations.strategy != "token":
        raise refuse(f"{place}.strategy", activations.strategy, "token is")
    for part, numbers in ((place, activations), (f"{field}.weights", weights)):
        if not numbers.symmetric:
            raise refuse(f"{part}.symmetric", numbers.symmetric, "true is, with quantised activations")
    if weights.num_bits != 8:
        raise refuse(f"{field}.weights.num_bits", weights.num_bits, "8 is, with quantised activations")
    if strategy not in STRATEGIES_OF_W8A8:
        supported = f"{' and '.join(STRATEGIES_OF_W8A8)} are, with quantised activations"
        raise refuse(f"{field}.weights.strategy", strategy, supported)
    if name != BYTES:
        raise refuse("format", name, f"{BYTES} is, with quantised activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedTensorsFormat(WeightFormat):
    """Tensors that both formats have."""

    symmetric: bool
    per_tensor: bool
    """True if all outputs have one scale."""
    method: ClassVar[str] = "compressed-tensors"

    def scales(self, part: MapPart) -> MapTensor:
        """Return the tensor of the scales."""
        if self.per_tensor:
            return MapTensor("weight_scale", (1,), FLOATS, (slice(0, 1),))
        shape = (part.outputs, self.num_groups(part.inputs))
        return MapTensor("weight_scale", shape, FLOATS, (part.output_part, self.groups(part)))

    def assembled(
        self, part: MapPart, stored: Mapping[str, torch.Tensor], numbers: torch.Tensor, zeros: torch.Tensor | None
    ) -> StoredIntegers:
        """Return the integers with their scales."""
        from orca_worker.quantized_checkpoints.integers import StoredIntegers

        rows = len(numbers)
        scales = stored["weight_scale"]
        if self.per_tensor:
            scales = scales.reshape(1, 1).expand(rows, 1).contiguous()
            zeros = None if zeros is None else zeros.reshape(1, 1).expand(rows, 1)
        group_of = stored.get("weight_g_idx")
        if group_of is not None and (group_of == -1).all():
            group_of = None
        return StoredIntegers(
            self.bits,
            numbers,
            scales,
            zeros,
            self.group(part.inputs),
            groups_of_inputs(self, part, group_of, "weight_g_idx"),
            self.integer_activations,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat(CompressedTensorsFormat):
    """Tensors of pack-quantized."""

    marker: ClassVar[str] = "weight_packed"
    optional: ClassVar[frozenset[str]] = frozenset({"weight_g_idx"})

    def tensors(self, part: MapPart, stored: Collection[str]) -> Iterator[MapTensor]:
        """See WeightFormat."""
        words = -(-part.inputs // self.per_word)
        yield MapTensor(
            "weight_packed", (part.outputs, words), ("I32",), (part.output_part, self.words(part.input_part))
        )
        yield self.scales(part)
        yield MapTensor("weight_shape", (2,), ("I64", "I32"), (slice(0, 2),))
        if not self.symmetric:
            yield self._zeros(part)
        if "weight_g_idx" in stored:
            yield MapTensor("weight_g_idx", (part.inputs,), ("I32", "I64"), (slice(0, part.inputs),))

    def _zeros(self, part: MapPart) -> MapTensor:
        if self.per_tensor:
            raise refuse("strategy", "tensor", "zero points per group or channel are")
        words = -(-part.outputs // self.per_word)
        cut = (self.words(part.output_part), self.groups(part))
        return MapTensor("weight_zero_point", (words, self.num_groups(part.inputs)), ("I32",), cut)

    def integers(self, part: MapPart, stored: Mapping[str, torch.Tensor]) -> StoredIntegers:
        """See WeightFormat."""
        from orca_worker.quantized_checkpoints.integers import unpacked

        shape = stored["weight_shape"].tolist()
        if shape != [part.outputs, part.inputs]:
            raise ModelError(f"weight_shape: {shape}, {[part.outputs, part.inputs]} is expected")
        numbers = unpacked(stored["weight_packed"], self.bits, 1, part.input_part).contiguous()
        zeros = None if self.symmetric else unpacked(stored["weight_zero_point"], self.bits, 0, part.output_part)
        return self.assembled(part, stored, numbers, zeros)


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesFormat(CompressedTensorsFormat):
    """Tensors of int-quantized."""

    marker: ClassVar[str] = "weight_scale"

    def tensors(self, part: MapPart, stored: Collection[str]) -> Iterator[MapTensor]:
        """See WeightFormat."""
        yield MapTensor("weight", (part.outputs, part.inputs), ("I8",), (part.output_part, part.input_part))
        yield self.scales(part)
        if not self.symmetric:
            scales = self.scales(part)
            yield MapTensor("weight_zero_point", scales.shape, ("I8",), scales.part)

    def integers(self, part: MapPart, stored: Mapping[str, torch.Tensor]) -> StoredIntegers:
        """See WeightFormat."""
        for name in ("weight", "weight_zero_point"):
            self._check_range(name, stored.get(name))
        return self.assembled(part, stored, stored["weight"].contiguous(), stored.get("weight_zero_point"))

    def _check_range(self, name: str, values: torch.Tensor | None) -> None:
        """Raise ModelError for values of more bits than the format's: the files have a byte for each."""
        least = -(1 << (self.bits - 1))
        if values is not None and values.numel() and not least <= int(values.min()) <= int(values.max()) < -least:
            raise ModelError(f"{name}: integers from {least} to {-least - 1} are expected, by num_bits {self.bits}")


@dataclass(frozen=True, slots=True, kw_only=True)
class W8A8Format(BytesFormat):
    """Tensors of int-quantized whose maps quantise their input, too."""

    integer_activations: ClassVar[bool] = True
