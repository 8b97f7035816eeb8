"""Llama (Touvron et al., 2023) and its relatives Mistral, Qwen2 and Qwen3, with grouped-query attention.

The relatives differ in what `ModelConfig` says: Mistral sees a window, Qwen2 has biases on queries, keys and
values, Qwen3 normalises queries and keys per head. Names of tensors are those of `transformers`.
"""

from __future__ import annotations

import torch
from orca_kernels.interface import Kernels, RaggedBatch
from torch import nn

from orca_worker.checkpoint import Checkpoint, Scope
from orca_worker.intra_layer import IntraLayer
from orca_worker.layers import Attention, Head, Linear, RmsNorm, Rotary, RowParallelLinear, VocabularyEmbedding
from orca_worker.model_config import ModelConfig
from orca_worker.models.partition import ModelPartition, Share
from orca_worker.rows import LastTokens


class LlamaAttention(nn.Module):
    """Queries, keys and values of this rank's heads, and the map back."""

    def __init__(
        self, config: ModelConfig, window: int | None, scope: Scope, kernels: Kernels, ranks: IntraLayer
    ) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        heads, kv_heads = ranks.part(config.num_heads), ranks.kv_heads(config.num_kv_heads)
        query_part = slice(heads.start * size, heads.stop * size)
        kv_part = slice(kv_heads.start * size, kv_heads.stop * size)
        queries, keys = config.num_heads * size, config.num_kv_heads * size
        self.head_dim = size
        self.kernels = kernels
        self.heads = [part.stop - part.start for part in (heads, kv_heads)]
        self.qkv = Linear.read(
            kernels,
            hidden,
            config.qkv_bias,
            (scope["q_proj"], queries, query_part),
            (scope["k_proj"], keys, kv_part),
            (scope["v_proj"], keys, kv_part),
        )
        self.out = RowParallelLinear.read(kernels, scope["o_proj"], queries, hidden, config.output_bias, ranks)
        self.query_norm = self.key_norm = None
        if config.normalised_heads:
            self.query_norm = RmsNorm(scope["q_norm"], size, config.norm_epsilon, kernels)
            self.key_norm = RmsNorm(scope["k_norm"], size, config.norm_epsilon, kernels)
        self.attention = Attention(kv_heads.stop - kv_heads.start, size, window, kernels)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        batch: RaggedBatch,
        last: LastTokens | None,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Returns residual [S, H] plus the block's output, or its `last` rows; `rotation` is cosine and sine [S, D]."""
        num_queries, num_keys = self.heads
        turned, value = self.qkv(x).unflatten(1, (-1, self.head_dim)).split((num_queries + num_keys, num_keys), dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(turned[:, :num_queries]), self.key_norm(turned[:, num_queries:])
            turned = torch.cat((query, key), dim=1)
        turned = self.kernels.rotate(turned, *rotation)
        query, key = turned[:, :num_queries], turned[:, num_queries:]
        if last is not None:
            query, residual, batch = query[last.tokens], residual[last.tokens], last.ragged
        output: torch.Tensor = self.out(self.attention(query, key, value, batch), residual)
        return output


class LlamaMlp(nn.Module):
    """down(silu(gate) x up), inner units spread over the ranks."""

    def __init__(self, config: ModelConfig, scope: Scope, kernels: Kernels, ranks: IntraLayer) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.kernels = kernels
        part = ranks.part(inner)
        gate, up = ((scope[name], inner, part) for name in ("gate_proj", "up_proj"))
        self.gate_up = Linear.read(kernels, hidden, config.mlp_bias, gate, up)
        self.down = RowParallelLinear.read(kernels, scope["down_proj"], inner, hidden, config.mlp_bias, ranks)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Returns residual [S, H] plus the block's output."""
        output: torch.Tensor = self.down(self.kernels.silu_and_multiply(self.gate_up(x)), residual)
        return output


class LlamaLayer(nn.Module):
    """One Transformer layer, norms before the blocks."""

    def __init__(self, config: ModelConfig, layer: int, scope: Scope, kernels: Kernels, ranks: IntraLayer) -> None:
        super().__init__()
        hidden, epsilon = config.hidden_size, config.norm_epsilon
        self.norm_1 = RmsNorm(scope["input_layernorm"], hidden, epsilon, kernels)
        self.attention = LlamaAttention(config, config.windows[layer], scope["self_attn"], kernels, ranks)
        self.norm_2 = RmsNorm(scope["post_attention_layernorm"], hidden, epsilon, kernels)
        self.mlp = LlamaMlp(config, scope["mlp"], kernels, ranks)

    def forward(
        self,
        hidden: torch.Tensor,
        batch: RaggedBatch,
        last: LastTokens | None,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """See ModelPartition.forward."""
        hidden = self.attention(self.norm_1(hidden), hidden, batch, last, rotation)
        output: torch.Tensor = self.mlp(self.norm_2(hidden), hidden)
        return output


class LlamaPartition(ModelPartition):
    """One inter-layer partition."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, share: Share) -> None:
        super().__init__()
        assert config.rope is not None
        root, vocabulary = Scope(checkpoint), config.vocabulary_size
        scope = root["model"]
        mine = (share.ranks.part(vocabulary),)
        if share.first or (share.last and config.tied_head):
            tokens = scope.read("embed_tokens.weight", vocabulary, config.hidden_size, part=mine)
        if share.first:
            self.token_embedding = VocabularyEmbedding(tokens, vocabulary, share.ranks)
        self.rotary = Rotary(config.rope, config.head_dim, share.max_model_len, share.device)
        self.layers = nn.ModuleList(
            LlamaLayer(config, layer, scope["layers"][layer], share.kernels, share.ranks)
            for layer in config.layers_of(share.partition, share.num_partitions)
        )
        if share.last:
            self.final_norm = RmsNorm(scope["norm"], config.hidden_size, config.norm_epsilon, share.kernels)
            if not config.tied_head:
                tokens = root["lm_head"].read("weight", vocabulary, config.hidden_size, part=mine)
            self.head = Head(tokens, vocabulary, share.kernels, share.ranks)

    def embed(self, tokens: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """See ModelPartition."""
        embedded: torch.Tensor = self.token_embedding(tokens)
        return embedded

    def forward(self, hidden: torch.Tensor, batch: RaggedBatch, last: LastTokens | None) -> torch.Tensor:
        """See ModelPartition."""
        rotation = self.rotary.at(batch.positions)
        *others, final = self.layers
        for layer in others:
            hidden = layer(hidden, batch, None, rotation)
        output: torch.Tensor = final(hidden, batch, last, rotation)
        return output

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ModelPartition."""
        logits: torch.Tensor = self.head(self.final_norm(hidden))
        return logits.float()
