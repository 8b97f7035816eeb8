"""Gemma-2 (Gemma Team, 2024; `Gemma2ForCausalLM` in transformers): Llama with other norms, caps and windows.

There are norms before and after attention and MLP, with the factor 1 + weight; attention scores and logits are capped
by c tanh(x / c); every second layer has a sliding window; embeddings are scaled; the gate is a GeLU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from orca_kernels.interface import AttentionForm
from pydantic import AfterValidator, Field

from orca_worker.config_schema import MAX_HEADS, Heads
from orca_worker.errors import ModelError
from orca_worker.models.family import ModelPartition, Named
from orca_worker.models.llama import LlamaAttention, LlamaConfig, LlamaFields, LlamaMlp, LlamaPartition
from orca_worker.models.llama_relatives import LayerTypes, Window, windows_of
from orca_worker.residual import Residual

if TYPE_CHECKING:
    import torch
    from orca_kernels.interface import RaggedBatch, Rotation

    from orca_worker.models.parts import Parts
    from orca_worker.rows import LastTokens

NORM: Final = "rms_norm_plus_one"


def _not_tiny(cap: float) -> float:
    if 0 < cap < 1e-6:
        raise ValueError("a cap must be at least 1e-6, or 0 to turn it off")
    return cap


Cap = Annotated[float, Field(ge=0, le=1e6), AfterValidator(_not_tiny)]


class Gemma2File(LlamaFields):
    """config.json. 0 and null turn a cap off."""

    num_key_value_heads: Heads = 4
    head_dim: Annotated[int, Field(ge=2, le=MAX_HEADS, multiple_of=2)] = 256
    tie_word_embeddings: bool = True
    hidden_activation: str = "gelu_pytorch_tanh"
    query_pre_attn_scalar: Annotated[float, Field(ge=1e-6, le=1e12)] = 256.0
    sliding_window: Window = 4096
    layer_types: LayerTypes | None = None
    attn_logit_softcapping: Cap = 50.0
    final_logit_softcapping: Cap = 30.0
    use_bidirectional_attention: bool = False
    activation: ClassVar[tuple[str, str]] = ("hidden_activation", "gelu_pytorch_tanh")
    off_if_null: ClassVar[frozenset[str]] = frozenset(
        {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window"}
    )

    def config(self) -> Gemma2Config:
        """See ConfigFile."""
        self.require("use_bidirectional_attention", False)
        layers = self.num_hidden_layers
        kinds = self.layer_types or [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)]
        windows = windows_of(kinds, layers, self.sliding_window)
        if not self.sliding_window and "sliding_attention" in kinds:
            raise ModelError("sliding_window is 0 or null, but some of the layers have sliding_attention")
        return Gemma2Config(
            **self.facts("gemma2") | {"windows": windows},
            qkv_bias=self.attention_bias,
            output_bias=self.attention_bias,
            attention_scale=self.query_pre_attn_scalar**-0.5,
            score_cap=self.attn_logit_softcapping or None,
            logit_cap=self.final_logit_softcapping or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config(LlamaConfig):
    """Configuration of a Gemma-2."""

    attention_scale: float
    score_cap: float | None
    logit_cap: float | None

    @property
    def finds_likeliest(self) -> bool:
        """See ModelConfig: the cap makes some different logits equal."""
        return not self.embeds_only and self.logit_cap is None

    def layer_tensors(self) -> Iterator[Named]:
        """See LlamaConfig."""
        yield from LlamaConfig.layer_tensors(self)
        for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            yield f"{name}.weight", (self.hidden_size,)

    def build(self, parts: Parts) -> ModelPartition:
        """See ModelConfig."""
        return Gemma2Partition(self, parts)


class Gemma2Layer:
    """One Transformer layer, with norms before and after the blocks."""

    def __init__(self, config: Gemma2Config, layer: int, parts: Parts) -> None:
        hidden, epsilon = config.hidden_size, config.norm_epsilon
        form = AttentionForm(
            config.head_dim, scale=config.attention_scale, window=config.windows[layer], softcap=config.score_cap
        )
        self.before_attention = parts.rms_norm("input_layernorm", hidden, epsilon, NORM)
        self.attention = LlamaAttention(config, form, parts["self_attn"])
        self.after_attention = parts.rms_norm("post_attention_layernorm", hidden, epsilon, NORM)
        self.before_mlp = parts.rms_norm("pre_feedforward_layernorm", hidden, epsilon, NORM)
        self.mlp = LlamaMlp(config, parts["mlp"], "gelu_tanh_and_multiply")
        self.after_mlp = parts.rms_norm("post_feedforward_layernorm", hidden, epsilon, NORM)

    def __call__(self, residual: Residual, batch: RaggedBatch, last: LastTokens | None, rotation: Rotation) -> Residual:
        """See ModelPartition."""
        hidden, normed = self.before_attention.of(residual)
        attended = self.attention(normed, batch, last, rotation)
        if last is not None:
            hidden = hidden[last.tokens]
        hidden, normed = self.before_mlp.of(Residual(hidden, self.after_attention(self.attention.out(attended))))
        return Residual(hidden, self.after_mlp(self.mlp.down(self.mlp(normed))))


class Gemma2Partition(LlamaPartition):
    """One inter-layer partition."""

    def __init__(self, config: Gemma2Config, parts: Parts) -> None:
        super().__init__(config, parts, partial(Gemma2Layer, config), NORM)
        # In the dtype of the weights, as transformers does: 55.5 in bfloat16, where the root is 55.4256.
        self.embedding_scale = parts.number(config.hidden_size**0.5)
        self.logit_cap = config.logit_cap

    def embed(self, tokens: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """See ModelPartition."""
        return super().embed(tokens, batch) * self.embedding_scale

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ModelPartition."""
        logits = super().logits(hidden)
        return logits if self.logit_cap is None else (logits / self.logit_cap).tanh() * self.logit_cap
