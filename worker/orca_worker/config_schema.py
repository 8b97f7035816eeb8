"""Common part of the schemas of config.json: types and bounds of fields, and the fields of every family.

The fields of a family are in its model's file (models/). Names and defaults are those of `transformers`; null means
the default; unknown fields are ignored. The bounds here hold for any model; values that depend on the weights are
checked against the weights' headers (weight_headers.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from orca_protos.model_files import quote
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from orca_worker.errors import ModelError

if TYPE_CHECKING:
    from orca_worker.models.family import ModelConfig

MAX_LAYERS = 4096
MAX_HEADS = 1 << 16
MAX_COUNT = 2**31 - 1
DTYPES = ("float32", "bfloat16", "float16")


def whole(value: Any) -> Any:
    """Convert 131072.0, as some programs write integers, to 131072; return other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, Field(ge=1, le=MAX_COUNT), BeforeValidator(whole)]
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Heads = Annotated[int, Field(ge=1, le=MAX_HEADS)]
Epsilon = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e12)]


class ModelFile(BaseModel):
    """Common settings: strict JSON types ("1" and true are not numbers), neither infinities nor NaN."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class ArchitectureFile(ModelFile):
    """The field that selects the family's schema."""

    architectures: Annotated[list[str], Field(min_length=1)] = ["none"]


class ConfigFile(ModelFile):
    """Fields of every family. Each family derives its schema from this class."""

    vocab_size: Count
    dtype: str | None = None
    torch_dtype: str | None = None
    is_causal: bool = True
    off_if_null: ClassVar[frozenset[str]] = frozenset()
    """Numeric fields in which null means 0, which turns the feature off, instead of the default."""

    def config(self) -> ModelConfig:
        """Return the model that the file describes; raise ModelError for what is not supported."""
        raise NotImplementedError

    def stored_dtype(self) -> str:
        """Return the element type of the weights; raise ModelError if it is not supported."""
        name = self.dtype or self.torch_dtype or "float32"
        if name not in DTYPES:
            raise ModelError(f"dtype {quote(name)} is not supported: {', '.join(DTYPES)} are")
        return name

    def require(self, name: str, *supported: object) -> None:
        """Raise ModelError if the field `name` has another value than the `supported` ones."""
        value = getattr(self, name)
        if value not in supported:
            raise ModelError(f"{name} {quote(value)} is not supported: {', '.join(map(repr, supported))} is")


def divided_head_dim(hidden: int, heads: int, multiple: int = 1) -> int:
    """Return hidden size over heads; raise ModelError if it is not a whole multiple of `multiple`."""
    if hidden % heads:
        raise ModelError(f"hidden size {hidden} is not a multiple of the {heads} heads")
    if hidden // heads % multiple:
        raise ModelError(f"hidden size {hidden} over {heads} heads is {hidden // heads}, not a multiple of {multiple}")
    return hidden // heads
