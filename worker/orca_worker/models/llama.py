"""Llama (Touvron et al., 2023; `LlamaForCausalLM` in transformers), with grouped-query attention.

Its relatives (llama_relatives.py) are the same model with other values of `LlamaConfig`: sliding windows, biases, norms
on heads.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from orca_kernels.interface import AttentionForm
from pydantic import Field, model_validator

from orca_worker.config_schema import MAX_HEADS, Count, Epsilon, Heads, Layers, divided_head_dim
from orca_worker.models.family import ModelConfig, ModelPartition, Named
from orca_worker.residual import Residual
from orca_worker.rope import RotaryFile, read_rope

if TYPE_CHECKING:
    import torch
    from orca_kernels.interface import RaggedBatch, Rotation

    from orca_worker.models.parts import Parts, RmsNorm
    from orca_worker.rows import LastTokens

    Layer = Callable[[Residual, RaggedBatch, LastTokens | None, Rotation], Residual]
    """A Transformer layer. Arguments: those of ModelPartition.__call__, and each token's rotation."""


class LlamaFields(RotaryFile):
    """Fields of config.json that Llama and its relatives have in common."""

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Layers
    num_attention_heads: Heads
    num_key_value_heads: Heads | None = None
    head_dim: Annotated[int, Field(ge=2, le=MAX_HEADS, multiple_of=2)] | None = None
    rms_norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    activation: ClassVar[tuple[str, str]] = ("hidden_act", "silu")
    """The field with the activation function, and its only supported value."""

    @model_validator(mode="after")
    def _heads_divide(self) -> LlamaFields:
        if self.num_key_value_heads is not None and self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}"
            )
        return self

    def facts(self, family: str) -> dict[str, Any]:
        """Return the values of `LlamaConfig` that are the same for Llama and its relatives; raise ModelError."""
        self.require(*self.activation)
        self.require("is_causal", True)
        return {
            "family": family,
            "num_layers": self.num_hidden_layers,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self.num_key_value_heads or self.num_attention_heads,
            "head_dim": self.head_dim or divided_head_dim(self.hidden_size, self.num_attention_heads, multiple=2),
            "vocabulary_size": self.vocab_size,
            "max_positions": self.max_position_embeddings,
            "norm_epsilon": self.rms_norm_eps,
            "tied_head": self.tie_word_embeddings,
            "rope": read_rope(self),
            "dtype": self.stored_dtype(),
            "windows": (None,) * self.num_hidden_layers,
        }


class LlamaFile(LlamaFields):
    """config.json of Llama."""

    def config(self) -> LlamaConfig:
        """See ConfigFile."""
        bias = self.attention_bias
        return LlamaConfig(**self.facts("llama"), qkv_bias=bias, output_bias=bias, mlp_bias=self.mlp_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Configuration of a Llama or a relative."""

    windows: tuple[int | None, ...]
    """Sliding window of each layer: positions that a token attends to, its own included; None: no limit."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    normalised_heads: bool = False
    """True if queries and keys are normalised per head."""
    tables: ClassVar[frozenset[str]] = frozenset({"embed_tokens"})
    row_parallel: ClassVar[frozenset[str]] = frozenset({"o_proj", "down_proj"})

    def tensors(self, partition: int, num_partitions: int, stored: Container[str]) -> Iterator[Named]:
        """See ModelConfig."""
        # Checkpoints of the model without a head, such as those of Qwen3-Embedding, have no prefix.
        root = "" if "embed_tokens.weight" in stored else "model."
        first, last = partition == 0, partition == num_partitions - 1
        vocabulary, hidden = self.vocabulary_size, self.hidden_size
        if first or (last and self.tied_head):
            yield f"{self.table(f'{root}embed_tokens', stored)}.weight", (vocabulary, hidden)
        if last:
            yield f"{root}norm.weight", (hidden,)
            if not self.tied_head:
                yield "lm_head.weight", (vocabulary, hidden)
        for layer in self.layers_of(partition, num_partitions):
            for name, shape in self.layer_tensors():
                yield f"{root}layers.{layer}.{name}", shape

    def layer_tensors(self) -> Iterator[Named]:
        """Yield the tensors of a layer."""
        hidden, inner, size = self.hidden_size, self.intermediate_size, self.head_dim
        queries, keys = self.num_heads * size, self.num_kv_heads * size
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.weight", (hidden,)
        if self.normalised_heads:
            for name in ("q_norm", "k_norm"):
                yield f"self_attn.{name}.weight", (size,)
        for name, outputs, inputs, bias in (
            ("self_attn.q_proj", queries, hidden, self.qkv_bias),
            ("self_attn.k_proj", keys, hidden, self.qkv_bias),
            ("self_attn.v_proj", keys, hidden, self.qkv_bias),
            ("self_attn.o_proj", hidden, queries, self.output_bias),
            ("mlp.gate_proj", inner, hidden, self.mlp_bias),
            ("mlp.up_proj", inner, hidden, self.mlp_bias),
            ("mlp.down_proj", hidden, inner, self.mlp_bias),
        ):
            yield f"{name}.weight", (outputs, inputs)
            if bias:
                yield f"{name}.bias", (outputs,)

    def build(self, parts: Parts) -> ModelPartition:
        """See ModelConfig."""
        return LlamaPartition(self, parts, partial(LlamaLayer, self))


class LlamaAttention:
    """Maps and attention of this rank's heads."""

    def __init__(self, config: LlamaConfig, form: AttentionForm, parts: Parts) -> None:
        hidden, size, group = config.hidden_size, config.head_dim, parts.group
        heads, kv_heads = group.part(config.num_heads), group.kv_heads(config.num_kv_heads)
        query_part = slice(heads.start * size, heads.stop * size)
        kv_part = slice(kv_heads.start * size, kv_heads.stop * size)
        queries, keys = config.num_heads * size, config.num_kv_heads * size
        self.head_dim = size
        self.heads = [part.stop - part.start for part in (heads, kv_heads)]
        self.qkv = parts.linear(
            hidden,
            config.qkv_bias,
            ("q_proj", queries, query_part),
            ("k_proj", keys, kv_part),
            ("v_proj", keys, kv_part),
        )
        self.out = parts.row_parallel("o_proj", queries, hidden, config.output_bias)
        self.head_norms = None
        if config.normalised_heads:
            self.head_norms = [parts.rms_norm(name, size, config.norm_epsilon) for name in ("q_norm", "k_norm")]
        self.attention = parts.attention(kv_heads.stop - kv_heads.start, form)

    def __call__(
        self, x: torch.Tensor, batch: RaggedBatch, last: LastTokens | None, rotation: Rotation
    ) -> torch.Tensor:
        """Return this rank's heads [S, N x D], or those of the `last` tokens only, as the input of `out`."""
        num_queries, num_keys = self.heads
        heads = self.qkv(x).view(len(x), -1, self.head_dim)
        both, value = heads[:, : num_queries + num_keys], heads[:, num_queries + num_keys :]
        queries_and_keys = [both]
        if self.head_norms is not None:
            parts = (both[:, :num_queries], both[:, num_queries:])
            queries_and_keys = [norm(part) for norm, part in zip(self.head_norms, parts, strict=True)]
        query = self.attention.rotate_and_store(queries_and_keys, value, rotation, batch)
        if last is not None:
            query, batch = query[last.tokens], last.ragged
        return self.attention(query, batch)


class LlamaMlp:
    """down(activation(gate) x up), inner units spread over the ranks."""

    def __init__(self, config: LlamaConfig, parts: Parts, activation: str = "silu_and_multiply") -> None:
        """`activation`: the operation of the kernels on gates and ups."""
        hidden, inner = config.hidden_size, config.intermediate_size
        part = parts.group.part(inner)
        self.gate_up = parts.linear(hidden, config.mlp_bias, ("gate_proj", inner, part), ("up_proj", inner, part))
        self.activate = parts.operation(activation)
        self.down = parts.row_parallel("down_proj", inner, hidden, config.mlp_bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's inner units [S, I], for `down`."""
        return self.activate(self.gate_up(x))


class LlamaLayer:
    """One Transformer layer, with norms before the blocks."""

    def __init__(self, config: LlamaConfig, layer: int, parts: Parts) -> None:
        hidden, epsilon = config.hidden_size, config.norm_epsilon
        form = AttentionForm(config.head_dim, scale=config.head_dim**-0.5, window=config.windows[layer])
        self.norm_1 = parts.rms_norm("input_layernorm", hidden, epsilon)
        self.attention = LlamaAttention(config, form, parts["self_attn"])
        self.norm_2 = parts.rms_norm("post_attention_layernorm", hidden, epsilon)
        self.mlp = LlamaMlp(config, parts["mlp"])

    def __call__(self, residual: Residual, batch: RaggedBatch, last: LastTokens | None, rotation: Rotation) -> Residual:
        """See ModelPartition."""
        hidden, normed = self.norm_1.of(residual)
        attended = self.attention(normed, batch, last, rotation)
        residual = self.attention.out.add(attended, hidden if last is None else hidden[last.tokens])
        hidden, normed = self.norm_2.of(residual)
        return self.mlp.down.add(self.mlp(normed), hidden)


class LlamaPartition(ModelPartition):
    """One inter-layer partition.

    `make_layer` builds a layer from its number and its parts. `norm`: the kernels' operation for the final norm.
    """

    def __init__(
        self, config: LlamaConfig, parts: Parts, make_layer: Callable[[int, Parts], Layer], norm: RmsNorm = "rms_norm"
    ) -> None:
        super().__init__(parts)
        assert config.rope is not None
        root = "" if "embed_tokens.weight" in parts else "model."
        scope = parts["model"] if root else parts
        spec, vocabulary = parts.spec, config.vocabulary_size
        if spec.first or (spec.last and config.tied_head):
            name = config.table(f"{root}embed_tokens", parts)
            table = parts.vocabulary_table(name, vocabulary, config.hidden_size)
        if spec.first:
            self.token_embedding = parts.vocabulary_embedding(table, vocabulary)
        self.rotary = parts.rotary(config.rope, config.head_dim)
        layers = config.layers_of(spec.partition, spec.num_partitions)
        self.layers = [make_layer(layer, scope["layers"][layer]) for layer in layers]
        if spec.last:
            self.final_norm = scope.rms_norm("norm", config.hidden_size, config.norm_epsilon, norm)
            tied = table if config.tied_head else None
            self.head = parts.head("lm_head", vocabulary, config.hidden_size, tied)

    def embed(self, tokens: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """See ModelPartition."""
        return self.token_embedding(tokens)

    def __call__(self, hidden: torch.Tensor, batch: RaggedBatch, last: LastTokens | None) -> torch.Tensor:
        """See ModelPartition."""
        rotation = self.rotary.at(batch.positions)
        residual = Residual(hidden)
        *others, final = self.layers
        for layer in others:
            residual = layer(residual, batch, None, rotation)
        return final(residual, batch, last, rotation).total()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ModelPartition."""
        return self.head(self.final_norm(hidden)).float()

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """See ModelPartition."""
        return None if self.head.likeliest is None else self.head.likeliest(self.final_norm(hidden))
