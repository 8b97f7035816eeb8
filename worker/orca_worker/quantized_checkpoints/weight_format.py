"""`WeightFormat`: how a quantised checkpoint stores the weights of linear maps. Imports no torch.

A linear map W [outputs, inputs] is stored as integers with a scale and a zero point per output and group of inputs:
W = (integer - zero point) x scale. The tensors of the checkpoint decide which maps are quantised: a map without the
format's tensors has a plain `weight`. The lists of excluded modules in config.json say the same and are not read.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from orca_kernels.interface import GROUP_MULTIPLE, whole_group
from orca_protos.model_files import quote
from pydantic import Field

from orca_worker.config_schema import MAX_COUNT
from orca_worker.errors import ModelError

if TYPE_CHECKING:
    import torch
    from orca_contract.model_choices import Quantization

    from orca_worker.quantized_checkpoints.integers import StoredIntegers

WORD_BITS = 32
SUPPORTED_BITS = (4, 8)
WHOLE_ROW = -1
"""Group size of config.json: all inputs of an output have one scale."""
OTHER_MODEL = "serve the unquantised checkpoint with --quantization int8, int4, w8a8 or w4a8"

GroupSize = Annotated[int, Field(ge=WHOLE_ROW, le=MAX_COUNT)]


@dataclass(frozen=True, slots=True)
class MapPart:
    """The outputs and inputs of a linear map, and the slices that a rank holds, with explicit bounds."""

    outputs: int
    inputs: int
    output_part: slice
    input_part: slice

    @classmethod
    def whole(cls, outputs: int, inputs: int) -> MapPart:
        """Return all of a map."""
        return cls(outputs, inputs, slice(0, outputs), slice(0, inputs))

    @property
    def has_all_inputs(self) -> bool:
        """True if the inputs are not divided."""
        return self.input_part == slice(0, self.inputs)


@dataclass(frozen=True, slots=True)
class MapTensor:
    """A tensor of a quantised map: its name below the map's, its whole shape, and what to read of it."""

    name: str
    shape: tuple[int, ...]
    dtypes: Collection[str]
    """Dtypes that the file may have, as safetensors names them."""
    part: tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat(ABC):
    """A format with the values of its `quantization_config`; raises ModelError for values that are not supported."""

    bits: int
    group_size: int
    """Inputs with a common scale; WHOLE_ROW: all."""
    method: ClassVar[str]
    """`quant_method` in config.json."""
    marker: ClassVar[str]
    """The tensor that every quantised map has, and no other."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """The tensors that a quantised map may have."""
    integer_activations: ClassVar[bool] = False
    """True if maps quantise their input, row by row."""

    def __post_init__(self) -> None:
        if self.bits not in SUPPORTED_BITS:
            raise ModelError(f"bits {self.bits}: weights of 4 and 8 bits are supported, {OTHER_MODEL}")
        if self.group_size != WHOLE_ROW and (self.group_size < 1 or self.group_size % GROUP_MULTIPLE):
            raise ModelError(
                f"group_size {self.group_size}: a multiple of {GROUP_MULTIPLE}, or -1 for a whole output, is expected"
            )

    @property
    def name(self) -> str:
        """For people, as "gptq int4"."""
        return f"{self.method} {self.quantization}"

    @property
    def quantization(self) -> str:
        """The value of `--quantization` that gives such maps."""
        return "w8a8" if self.integer_activations else f"int{self.bits}"

    def served_as(self, wanted: Quantization) -> str:
        """Return how a request for a quantization serves these weights, as `name`; raise ModelError if it cannot.

        Weights of four bits can also be multiplied by activations of eight bits.
        """
        if wanted in ("none", self.quantization):
            return self.name
        if wanted == "w4a8" and self.quantization == "int4":
            return f"{self.method} {wanted}"
        raise ModelError(
            f"the weights are quantised already ({self.name}), which --quantization {wanted} contradicts: leave the "
            "option out"
        )

    @property
    def per_word(self) -> int:
        """Integers in a word of 32 bits, the first in the lowest bits."""
        return WORD_BITS // self.bits

    @abstractmethod
    def tensors(self, part: MapPart, stored: Collection[str]) -> Iterator[MapTensor]:
        """Yield the tensors of a quantised map; `stored`: those of `optional` that the checkpoint has.

        Raises ModelError if the format cannot store a map of this shape.
        """

    @abstractmethod
    def integers(self, part: MapPart, stored: Mapping[str, torch.Tensor]) -> StoredIntegers:
        """Return the integers of a rank's part from the tensors' parts; raise ModelError for invalid values."""

    def group(self, inputs: int) -> int:
        """Return the inputs with a common scale, a multiple of GROUP_MULTIPLE."""
        return whole_group(inputs) if self.group_size == WHOLE_ROW else self.group_size

    def num_groups(self, inputs: int) -> int:
        """Return the number of groups of an output; the last one may be smaller."""
        return -(-inputs // self.group(inputs))

    def groups(self, part: MapPart) -> slice:
        """Return the groups of a part's inputs; raise ModelError if it cuts a group."""
        group, first, end = self.group(part.inputs), part.input_part.start, part.input_part.stop
        if self.group_size != WHOLE_ROW and (first % group or (end % group and end != part.inputs)):
            raise ModelError(f"inputs {first} to {end} of {part.inputs} cut a group of {group} inputs")
        return slice(first // group, -(-end // group))

    def words(self, part: slice) -> slice:
        """Return the words that hold the integers `part` of a dimension."""
        return slice(part.start // self.per_word, -(-part.stop // self.per_word))

    def full_words(self, count: int, what: str) -> int:
        """Return the words of `count` integers; raise ModelError if they do not fill the last one."""
        if count % self.per_word:
            raise ModelError(f"{count} {what} are not a multiple of {self.per_word}, the integers of a word")
        return count // self.per_word

    def check_tensor_parallel(self, inputs: int, size: int) -> None:
        """Raise ModelError if dividing a map's inputs over `size` ranks cuts a group."""
        if not self._divides(inputs, size):
            fitting = ", ".join(str(smaller) for smaller in range(1, size) if self._divides(inputs, smaller))
            raise ModelError(
                f"tensor-parallel-size {size} cuts the {inputs} inputs inside a group of {self.group_size}: "
                f"{fitting} would not"
            )

    def _divides(self, inputs: int, size: int) -> bool:
        cuts = [inputs * rank // size for rank in range(1, size)]
        return self.group_size == WHOLE_ROW or all(cut % self.group_size == 0 for cut in cuts)


@contextlib.contextmanager
def errors_of(place: str) -> Iterator[None]:
    """Put the place of a map before the message of a ModelError."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{place}: {error}") from error


def refuse(field: str, value: object, supported: str) -> ModelError:
    """Return the error of a field of `quantization_config` whose value is not supported."""
    return ModelError(f"{field} {quote(value)} is not supported: {supported}; {OTHER_MODEL}")
