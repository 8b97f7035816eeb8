"""GPT-2 (Radford et al., 2019; `GPT2LMHeadModel` in transformers)."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from orca_kernels.interface import AttentionForm

from orca_worker.config_schema import ConfigFile, Count, Epsilon, Heads, Layers, divided_head_dim
from orca_worker.models.family import ModelConfig, ModelPartition, Named
from orca_worker.residual import Residual

if TYPE_CHECKING:
    import torch
    from orca_kernels.interface import RaggedBatch

    from orca_worker.models.parts import Parts
    from orca_worker.rows import LastTokens


class Gpt2File(ConfigFile):
    """config.json."""

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

    def config(self) -> Gpt2Config:
        """See ConfigFile."""
        self.require("activation_function", "gelu_new", "gelu_pytorch_tanh")
        self.require("scale_attn_weights", True)
        self.require("scale_attn_by_inverse_layer_idx", False)
        self.require("add_cross_attention", False)
        self.require("is_causal", True)
        return Gpt2Config(
            family="gpt2",
            num_layers=self.n_layer,
            hidden_size=self.n_embd,
            intermediate_size=self.n_inner or 4 * self.n_embd,
            num_heads=self.n_head,
            num_kv_heads=self.n_head,
            head_dim=divided_head_dim(self.n_embd, self.n_head),
            vocabulary_size=self.vocab_size,
            max_positions=self.n_positions,
            norm_epsilon=self.layer_norm_epsilon,
            tied_head=self.tie_word_embeddings,
            dtype=self.stored_dtype(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt2Config(ModelConfig):
    """Configuration of a GPT-2."""

    tables: ClassVar[frozenset[str]] = frozenset({"wte", "wpe"})
    row_parallel: ClassVar[frozenset[str]] = frozenset({"c_proj"})
    transposed: ClassVar[bool] = True

    def tensors(self, partition: int, num_partitions: int, stored: Container[str]) -> Iterator[Named]:
        """See ModelConfig."""
        # The first checkpoints of GPT-2 have no prefix.
        root = "transformer." if "transformer.wpe.weight" in stored else ""
        first, last = partition == 0, partition == num_partitions - 1
        vocabulary, hidden, inner = self.vocabulary_size, self.hidden_size, self.intermediate_size
        if first or (last and self.tied_head):
            yield f"{self.table(f'{root}wte', stored)}.weight", (vocabulary, hidden)
        if first:
            yield f"{root}wpe.weight", (self.max_positions, hidden)
        if last:
            yield f"{root}ln_f.weight", (hidden,)
            yield f"{root}ln_f.bias", (hidden,)
            if not self.tied_head:
                yield "lm_head.weight", (vocabulary, hidden)
        for layer in self.layers_of(partition, num_partitions):
            for name in ("ln_1", "ln_2"):
                yield f"{root}h.{layer}.{name}.weight", (hidden,)
                yield f"{root}h.{layer}.{name}.bias", (hidden,)
            for name, inputs, outputs in (
                ("attn.c_attn", hidden, 3 * hidden),
                ("attn.c_proj", hidden, hidden),
                ("mlp.c_fc", hidden, inner),
                ("mlp.c_proj", inner, hidden),
            ):
                yield f"{root}h.{layer}.{name}.weight", (inputs, outputs)
                yield f"{root}h.{layer}.{name}.bias", (outputs,)

    def build(self, parts: Parts) -> ModelPartition:
        """See ModelConfig."""
        return Gpt2Partition(self, parts)


class Gpt2Layer:
    """One Transformer layer, with norms before the blocks."""

    def __init__(self, config: Gpt2Config, parts: Parts) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        heads = parts.group.part(config.num_heads)
        begin, end = heads.start * config.head_dim, heads.stop * config.head_dim
        query_key_value = [slice(offset + begin, offset + end) for offset in (0, hidden, 2 * hidden)]
        self.heads = (-1, heads.stop - heads.start, config.head_dim)
        self.norm_1 = parts.layer_norm("ln_1", hidden, config.norm_epsilon)
        self.qkv = parts["attn"].linear_transposed("c_attn", hidden, 3 * hidden, query_key_value)
        form = AttentionForm(config.head_dim, scale=config.head_dim**-0.5)
        self.attention = parts.attention(heads.stop - heads.start, form)
        self.attention_out = parts["attn"].row_parallel_transposed("c_proj", hidden, hidden)
        self.norm_2 = parts.layer_norm("ln_2", hidden, config.norm_epsilon)
        self.mlp_in = parts["mlp"].linear_transposed("c_fc", hidden, inner, [parts.group.part(inner)])
        self.mlp_out = parts["mlp"].row_parallel_transposed("c_proj", inner, hidden)

    def __call__(self, residual: Residual, batch: RaggedBatch, last: LastTokens | None) -> Residual:
        """See ModelPartition."""
        hidden, normed = self.norm_1.of(residual)
        query, key, value = (part.view(self.heads) for part in self.qkv(normed).chunk(3, dim=1))
        self.attention.store(key, value, batch)
        if last is not None:
            query, hidden, batch = query[last.tokens], hidden[last.tokens], last.ragged
        residual = self.attention_out.add(self.attention(query, batch), hidden)
        hidden, normed = self.norm_2.of(residual)
        return self.mlp_out.add(self.mlp_in.gelu_tanh(normed), hidden)


class Gpt2Partition(ModelPartition):
    """One inter-layer partition of GPT-2."""

    def __init__(self, config: Gpt2Config, parts: Parts) -> None:
        super().__init__(parts)
        root = "transformer." if "transformer.wpe.weight" in parts else ""
        scope, spec = parts["transformer"] if root else parts, parts.spec
        vocabulary, hidden = config.vocabulary_size, config.hidden_size
        if spec.first or (spec.last and config.tied_head):
            table = parts.vocabulary_table(config.table(f"{root}wte", parts), vocabulary, hidden)
        if spec.first:
            self.token_embedding = parts.vocabulary_embedding(table, vocabulary)
            self.position_embedding = scope.embedding("wpe", config.max_positions, hidden)
        layers = config.layers_of(spec.partition, spec.num_partitions)
        self.layers = [Gpt2Layer(config, scope["h"][layer]) for layer in layers]
        if spec.last:
            self.final_norm = scope.layer_norm("ln_f", hidden, config.norm_epsilon)
            self.head = parts.head("lm_head", vocabulary, hidden, table if config.tied_head else None)

    def embed(self, tokens: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """See ModelPartition."""
        return self.token_embedding(tokens) + self.position_embedding(batch.positions)

    def __call__(self, hidden: torch.Tensor, batch: RaggedBatch, last: LastTokens | None) -> torch.Tensor:
        """See ModelPartition."""
        residual = Residual(hidden)
        *others, final = self.layers
        for layer in others:
            residual = layer(residual, batch, None)
        return final(residual, batch, last).total()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ModelPartition."""
        return self.head(self.final_norm(hidden)).float()

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """See ModelPartition."""
        return None if self.head.likeliest is None else self.head.likeliest(self.final_norm(hidden))
