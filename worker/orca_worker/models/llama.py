"""Llama (Touvron et al., 2023; `LlamaForCausalLM` in transformers), with grouped-query attention."""

from __future__ import annotations

import torch
from orca_kernels.interface import Kernels, RaggedBatch
from torch import nn

from orca_worker.checkpoint import Checkpoint, Scope
from orca_worker.layers import Attention, Embedding, Linear, RmsNorm, Rotary
from orca_worker.model_config import ModelConfig
from orca_worker.models.partition import ModelPartition, Share


class LlamaLayer(nn.Module):
    """One Transformer layer."""

    def __init__(self, config: ModelConfig, scope: Scope, kernels: Kernels) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention, mlp = scope["self_attn"], scope["mlp"]
        self.head_dim = config.head_dim
        self.kernels = kernels
        self.norm_1 = RmsNorm(scope["input_layernorm"], hidden, config.norm_epsilon, kernels)
        self.query = Linear.read(attention["q_proj"], hidden, queries, config.attention_bias)
        self.key = Linear.read(attention["k_proj"], hidden, keys, config.attention_bias)
        self.value = Linear.read(attention["v_proj"], hidden, keys, config.attention_bias)
        self.attention = Attention(config.num_kv_heads, config.head_dim, kernels)
        self.attention_out = Linear.read(attention["o_proj"], queries, hidden, config.attention_bias)
        self.norm_2 = RmsNorm(scope["post_attention_layernorm"], hidden, config.norm_epsilon, kernels)
        self.gate = Linear.read(mlp["gate_proj"], hidden, inner, config.mlp_bias)
        self.up = Linear.read(mlp["up_proj"], hidden, inner, config.mlp_bias)
        self.down = Linear.read(mlp["down_proj"], inner, hidden, config.mlp_bias)

    def forward(
        self, hidden: torch.Tensor, batch: RaggedBatch, cosine: torch.Tensor, sine: torch.Tensor
    ) -> torch.Tensor:
        """Returns [S, H]; cosine and sine are [S, D]."""
        x = self.norm_1(hidden)
        heads = (-1, self.head_dim)
        query = self.kernels.rotate(self.query(x).unflatten(1, heads), cosine, sine)
        key = self.kernels.rotate(self.key(x).unflatten(1, heads), cosine, sine)
        value = self.value(x).unflatten(1, heads)
        hidden = hidden + self.attention_out(self.attention(query, key, value, batch))
        x = self.norm_2(hidden)
        output: torch.Tensor = hidden + self.down(self.kernels.silu_and_multiply(self.gate(x), self.up(x)))
        return output


class LlamaPartition(ModelPartition):
    """One inter-layer partition of Llama."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, share: Share) -> None:
        super().__init__()
        root = Scope(checkpoint)
        scope = root["model"]
        if share.first or (share.last and config.tied_head):
            tokens = scope.read("embed_tokens.weight", config.vocabulary_size, config.hidden_size)
        if share.first:
            self.token_embedding = Embedding(tokens)
        self.rotary = Rotary(config.rope_theta, config.head_dim, share.max_model_len, share.device)
        self.layers = nn.ModuleList(
            LlamaLayer(config, scope["layers"][layer], share.kernels)
            for layer in config.layers_of(share.partition, share.num_partitions)
        )
        if share.last:
            self.final_norm = RmsNorm(scope["norm"], config.hidden_size, config.norm_epsilon, share.kernels)
            self.head = (
                Linear(tokens)
                if config.tied_head
                else Linear.read(root["lm_head"], config.hidden_size, config.vocabulary_size, bias=False)
            )

    def embed(self, tokens: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """See ModelPartition."""
        embedded: torch.Tensor = self.token_embedding(tokens)
        return embedded

    def forward(self, hidden: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """See ModelPartition."""
        cosine, sine = self.rotary.at(batch.positions, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, batch, cosine, sine)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ModelPartition."""
        logits: torch.Tensor = self.head(self.final_norm(hidden))
        return logits.float()
