"""AWQ (Lin et al., 2024), as AutoAWQ's version `gemm` stores it. Imports no torch.

Tensors of a map: `qweight` [inputs, outputs / 8] and `qzeros` [groups, outputs / 8] int32, `scales` [groups, outputs].
The eight outputs of a word are interleaved: from the lowest bits on, outputs 0, 2, 4, 6, 1, 3, 5, 7 of the eight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from orca_worker.config_schema import ModelFile
from orca_worker.errors import ModelError
from orca_worker.quantized_checkpoints.weight_format import (
    OTHER_MODEL,
    GroupSize,
    MapPart,
    MapTensor,
    WeightFormat,
    refuse,
)
from orca_worker.weight_headers import FLOATS

if TYPE_CHECKING:
    import torch

    from orca_worker.quantized_checkpoints.integers import StoredIntegers

PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output of each four bits of a word, from the lowest on."""


class AwqFile(ModelFile):
    """`quantization_config` of AWQ."""

    bits: int
    group_size: GroupSize
    version: str = "gemm"

    def weight_format(self) -> AwqFormat:
        """Return the format; raise ModelError for what is not supported."""
        if self.version.lower() != "gemm":
            raise refuse("version", self.version, "gemm is")
        if self.bits != 4:
            raise ModelError(f"bits {self.bits}: weights of 4 bits are supported for awq, {OTHER_MODEL}")
        return AwqFormat(bits=self.bits, group_size=self.group_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqFormat(WeightFormat):
    """Tensors of AWQ."""

    method: ClassVar[str] = "awq"
    marker: ClassVar[str] = "qweight"

    def tensors(self, part: MapPart, stored: Collection[str]) -> Iterator[MapTensor]:
        """See WeightFormat."""
        outputs, inputs, groups = part.outputs, part.inputs, self.num_groups(part.inputs)
        words, here = self.full_words(outputs, "outputs"), self.groups(part)
        yield MapTensor("qweight", (inputs, words), ("I32",), (part.input_part, self.words(part.output_part)))
        yield MapTensor("qzeros", (groups, words), ("I32",), (here, self.words(part.output_part)))
        yield MapTensor("scales", (groups, outputs), FLOATS, (here, part.output_part))

    def integers(self, part: MapPart, stored: Mapping[str, torch.Tensor]) -> StoredIntegers:
        """See WeightFormat."""
        from orca_worker.quantized_checkpoints.integers import StoredIntegers, unpacked

        numbers, zeros = (
            unpacked(stored[name], self.bits, 1, part.output_part, PLACES).t().contiguous()
            for name in ("qweight", "qzeros")
        )
        return StoredIntegers(self.bits, numbers, stored["scales"].t().contiguous(), zeros, self.group(part.inputs))
