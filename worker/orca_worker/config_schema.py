"""Schemas of config.json: types, signs and bounds of the fields that ORCA reads; other fields are ignored.

Names and defaults are those of `transformers`; null means the default. The bounds here hold for any model; what depends
on the size of the weights is checked against their headers (weight_headers.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_LAYERS = 4096
MAX_HEADS = 1 << 16
MAX_COUNT = 2**31 - 1
MAX_ROPE_FACTOR = 65536.0


def _whole(value: Any) -> Any:
    """Returns 131072 for 131072.0, as some programs write integers, and anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _none_for_false(value: Any) -> Any:
    return None if value is False else value


Count = Annotated[int, Field(ge=1, le=MAX_COUNT), BeforeValidator(_whole)]
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Heads = Annotated[int, Field(ge=1, le=MAX_HEADS)]
Epsilon = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e12)]


class ModelFile(BaseModel):
    """Common settings: JSON types are taken as they are ("1" and true are not numbers), infinities and NaN refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class ArchitectureFile(ModelFile):
    """What decides which of the other schemas applies."""

    architectures: Annotated[list[str], Field(min_length=1)] = ["none"]


class ConfigFile(ModelFile):
    """Fields of every family."""

    vocab_size: Count
    dtype: str | None = None
    torch_dtype: str | None = None


class Gpt2File(ConfigFile):
    """config.json of `GPT2LMHeadModel`."""

    n_embd: Count
    n_head: Heads
    n_layer: Layers
    n_positions: Count
    n_inner: Count | None = None
    layer_norm_epsilon: Epsilon = 1e-5
    tie_word_embeddings: bool = True
    activation_function: str = "gelu_new"
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False


class RopeFields(ModelFile):
    """`rope_parameters`, or `rope_scaling` of older files."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] | None = None
    factor: Annotated[float, Field(gt=0, le=MAX_ROPE_FACTOR)] | None = None
    original_max_position_embeddings: Count | None = None
    partial_rotary_factor: float | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    attention_factor: Positive | None = None
    mscale: Annotated[float, Field(ge=0, le=1e6)] | None = None
    mscale_all_dim: Annotated[float, Field(ge=0, le=1e6)] | None = None
    truncate: bool | None = None


class LlamaFile(ConfigFile):
    """config.json of Llama and its relatives."""

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Layers
    num_attention_heads: Heads
    num_key_value_heads: Heads | None = None
    head_dim: Annotated[int, Field(ge=2, le=MAX_HEADS, multiple_of=2)] | None = None
    max_position_embeddings: Count
    rms_norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] | None = None
    partial_rotary_factor: float | None = None
    rope_parameters: Annotated[RopeFields | None, BeforeValidator(_none_for_false)] = None
    rope_scaling: Annotated[RopeFields | None, BeforeValidator(_none_for_false)] = None

    @model_validator(mode="after")
    def _fields_agree(self) -> LlamaFile:
        if self.num_key_value_heads is not None and self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}"
            )
        return self


class WindowSwitch(ModelFile):
    """Whether layers of Qwen2 and Qwen3 have a window. Without, the fields below may hold anything."""

    use_sliding_window: bool = False


class Window(ModelFile):
    """The window of Mistral, and of Qwen2 and Qwen3 if it is switched on."""

    sliding_window: Count | None = None


class WindowLayers(ModelFile):
    """Which layers of Qwen2 and Qwen3 have the window."""

    max_window_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS), BeforeValidator(_whole)] | None = None
    layer_types: Annotated[list[Literal["full_attention", "sliding_attention"]], Field(max_length=MAX_LAYERS)] = []
