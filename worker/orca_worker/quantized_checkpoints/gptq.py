"""GPTQ (Frantar et al., 2023), as AutoGPTQ and GPTQModel store it. Imports no torch.

Tensors of a map: `qweight` [inputs / n, outputs] and `qzeros` [groups, outputs / n] int32 with n integers per word,
`scales` [groups, outputs], `g_idx` [inputs] with the group of each input, which is unordered with act-order
(`desc_act`). `checkpoint_format` gptq stores zero points less one, gptq_v2 stores them as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from orca_worker.config_schema import ModelFile
from orca_worker.errors import ModelError
from orca_worker.quantized_checkpoints.weight_format import GroupSize, MapPart, MapTensor, WeightFormat, refuse
from orca_worker.weight_headers import FLOATS

if TYPE_CHECKING:
    import torch

    from orca_worker.quantized_checkpoints.integers import StoredIntegers

CHECKPOINT_FORMATS = ("gptq", "gptq_v2")
EXCLUDING = "-:"
"""Prefix of a pattern in `dynamic` whose modules are not quantised."""


class GptqFile(ModelFile):
    """`quantization_config` of GPTQ."""

    bits: int
    group_size: GroupSize
    checkpoint_format: str | None = None
    format: str | None = None
    pack_dtype: str = "int32"
    is_marlin_format: bool = False
    dynamic: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def weight_format(self) -> GptqFormat:
        """Return the format; raise ModelError for what is not supported."""
        checkpoint_format = self.checkpoint_format or self.format or "gptq"
        if checkpoint_format not in CHECKPOINT_FORMATS:
            raise refuse("checkpoint_format", checkpoint_format, f"{' and '.join(CHECKPOINT_FORMATS)} are")
        if self.is_marlin_format:
            raise refuse("is_marlin_format", True, "false is")
        if self.pack_dtype != "int32":
            raise refuse("pack_dtype", self.pack_dtype, "int32 is")
        own = {"bits": self.bits, "group_size": self.group_size}
        for pattern, values in self.dynamic.items():
            if not pattern.startswith(EXCLUDING) and own | values != values | own:
                raise refuse("dynamic", pattern, "the same bits and group_size for all modules are")
        return GptqFormat(bits=self.bits, group_size=self.group_size, less_one=checkpoint_format == "gptq")


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqFormat(WeightFormat):
    """Tensors of GPTQ."""

    less_one: bool
    """True if zero points are stored less one."""
    method: ClassVar[str] = "gptq"
    marker: ClassVar[str] = "qweight"
    optional: ClassVar[frozenset[str]] = frozenset({"g_idx"})

    def tensors(self, part: MapPart, stored: Collection[str]) -> Iterator[MapTensor]:
        """See WeightFormat."""
        outputs, inputs, groups = part.outputs, part.inputs, self.num_groups(part.inputs)
        words_of_inputs, words_of_outputs = self.full_words(inputs, "inputs"), self.full_words(outputs, "outputs")
        here = self.groups(part)
        yield MapTensor(
            "qweight", (words_of_inputs, outputs), ("I32",), (self.words(part.input_part), part.output_part)
        )
        yield MapTensor("qzeros", (groups, words_of_outputs), ("I32",), (here, self.words(part.output_part)))
        yield MapTensor("scales", (groups, outputs), FLOATS, (here, part.output_part))
        if "g_idx" in stored:
            yield MapTensor("g_idx", (inputs,), ("I32", "I64"), (slice(0, inputs),))

    def integers(self, part: MapPart, stored: Mapping[str, torch.Tensor]) -> StoredIntegers:
        """See WeightFormat."""
        from orca_worker.quantized_checkpoints.integers import StoredIntegers, unpacked

        numbers = unpacked(stored["qweight"], self.bits, 0, part.input_part).t().contiguous()
        zeros = unpacked(stored["qzeros"], self.bits, 1, part.output_part).t().contiguous()
        if self.less_one:
            if (zeros == (1 << (self.bits - 1)) - 1).any():
                raise ModelError(
                    "qzeros: a zero point of 0 is ambiguous in checkpoint_format gptq: convert the files to gptq_v2"
                )
            zeros += 1
        group_of = groups_of_inputs(self, part, stored.get("g_idx"), "g_idx")
        return StoredIntegers(
            self.bits, numbers, stored["scales"].t().contiguous(), zeros, self.group(part.inputs), group_of
        )


def groups_of_inputs(
    weight_format: WeightFormat, part: MapPart, stored: torch.Tensor | None, name: str
) -> torch.Tensor | None:
    """Return the group of each input of a part, None if they are in order.

    Raises ModelError for invalid groups, and for unordered ones if the inputs are divided over ranks: the inputs of a
    group would be on several ranks.
    """
    if stored is None:
        return None
    groups: torch.Tensor = stored.long()
    last = weight_format.num_groups(part.inputs) - 1
    if groups.min() < 0 or groups.max() > last:
        raise ModelError(f"{name}: groups from 0 to {last} are expected")
    if part.has_all_inputs:
        return groups
    if (groups.diff() < 0).any():
        raise ModelError(f"{name}: act-order spreads the groups over the ranks: set tensor-parallel-size to 1")
    return groups[part.input_part] - int(weight_format.groups(part).start)
