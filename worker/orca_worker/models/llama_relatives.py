"""Mistral, Qwen2 and Qwen3: Llama with other values. To add a relative, add a class here and its registry entry.

Sources: Jiang et al., 2023 (Mistral); Yang et al., 2024 (Qwen2) and 2025 (Qwen3). Names are those of `transformers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from orca_worker.config_schema import MAX_COUNT, MAX_HEADS, MAX_LAYERS, whole
from orca_worker.errors import ModelError
from orca_worker.models.llama import LlamaConfig, LlamaFields

LayerTypes = Annotated[list[Literal["full_attention", "sliding_attention"]], Field(max_length=MAX_LAYERS)]

Window = Annotated[int, Field(ge=0, le=MAX_COUNT), BeforeValidator(whole)]
"""Tokens that a token with a sliding window sees, itself included; 0: all before it."""


def windows_of(kinds: Sequence[str], layers: int, window: int | None) -> tuple[int | None, ...]:
    """Return the window of each layer by `layer_types`; raise ModelError if their number is not that of the layers."""
    if len(kinds) != layers:
        raise ModelError(f"layer_types has {len(kinds)} entries, but the model has {layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


class MistralFile(LlamaFields):
    """config.json of Mistral: layers have the sliding window, with layer_types (Ministral) those that it names; null
    and 0 are none.
    """

    sliding_window: Window = 4096
    layer_types: LayerTypes | None = None
    off_if_null: ClassVar[frozenset[str]] = frozenset({"sliding_window"})

    @model_validator(mode="before")
    @classmethod
    def _without_unused_fields(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Drop layer_types without a window: its value may be invalid."""
        return {name: value for name, value in raw.items() if name != "layer_types" or raw.get("sliding_window", 4096)}

    def config(self) -> LlamaConfig:
        """See ConfigFile."""
        kinds = self.layer_types or ["sliding_attention"] * self.num_hidden_layers
        windows = windows_of(kinds, self.num_hidden_layers, self.sliding_window or None)
        return LlamaConfig(**self.facts("mistral") | {"windows": windows})


class QwenFields(LlamaFields):
    """Fields of Qwen2 and Qwen3 for the sliding windows of layers; a window of null and 0 is none."""

    use_sliding_window: bool = False
    sliding_window: Window = 4096
    max_window_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS), BeforeValidator(whole)] = 28
    layer_types: LayerTypes | None = None
    off_if_null: ClassVar[frozenset[str]] = frozenset({"sliding_window"})

    @model_validator(mode="before")
    @classmethod
    def _without_unused_fields(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Drop fields that a model without windows does not use: their values may be invalid."""
        unused: tuple[str, ...] = ()
        if raw.get("use_sliding_window", False) is False:
            unused = ("sliding_window", "max_window_layers", "layer_types")
        elif raw.get("sliding_window", 4096) == 0:
            unused = ("max_window_layers", "layer_types")
        return {name: value for name, value in raw.items() if name not in unused}

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of each layer; raise ModelError if the fields contradict each other."""
        layers, window = self.num_hidden_layers, self.sliding_window if self.use_sliding_window else 0
        if not window:
            return (None,) * layers
        if self.layer_types:
            return windows_of(self.layer_types, layers, window)
        return tuple(window if layer >= self.max_window_layers else None for layer in range(layers))


class Qwen2File(QwenFields):
    """config.json of Qwen2: biases on queries, keys and values."""

    def config(self) -> LlamaConfig:
        """See ConfigFile."""
        return LlamaConfig(**self.facts("qwen2") | {"windows": self.windows()}, qkv_bias=True)


class Qwen3File(QwenFields):
    """config.json of Qwen3: queries and keys are normalised per head."""

    head_dim: Annotated[int, Field(ge=2, le=MAX_HEADS, multiple_of=2)] = 128

    def config(self) -> LlamaConfig:
        """See ConfigFile."""
        bias = self.attention_bias
        return LlamaConfig(
            **self.facts("qwen3") | {"windows": self.windows()},
            qkv_bias=bias,
            output_bias=bias,
            normalised_heads=True,
        )
