"""GPT-2 (Radford et al., 2019; `GPT2LMHeadModel` in transformers)."""

from __future__ import annotations

import torch
from orca_kernels.interface import Kernels, RaggedBatch
from torch import nn

from orca_worker.checkpoint import Checkpoint, Scope
from orca_worker.intra_layer import IntraLayer
from orca_worker.layers import (
    Attention,
    Embedding,
    GeluLinear,
    Head,
    LayerNorm,
    Linear,
    RowParallelLinear,
    VocabularyEmbedding,
)
from orca_worker.model_config import ModelConfig
from orca_worker.models.partition import ModelPartition, Share
from orca_worker.rows import LastTokens


class Gpt2Layer(nn.Module):
    """One Transformer layer, norms before the blocks."""

    def __init__(self, config: ModelConfig, scope: Scope, kernels: Kernels, ranks: IntraLayer) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        heads = ranks.part(config.num_heads)
        mine = slice(heads.start * config.head_dim, heads.stop * config.head_dim)
        query_key_value = [slice(at + mine.start, at + mine.stop) for at in (0, hidden, 2 * hidden)]
        self.heads = (-1, config.head_dim)
        self.norm_1 = LayerNorm(scope["ln_1"], hidden, config.norm_epsilon, kernels)
        self.qkv = Linear.read_transposed(kernels, scope["attn"]["c_attn"], hidden, 3 * hidden, query_key_value)
        self.attention = Attention(heads.stop - heads.start, config.head_dim, None, kernels)
        self.attention_out = RowParallelLinear.read_transposed(kernels, scope["attn"]["c_proj"], hidden, hidden, ranks)
        self.norm_2 = LayerNorm(scope["ln_2"], hidden, config.norm_epsilon, kernels)
        self.mlp_in = GeluLinear.read_transposed(kernels, scope["mlp"]["c_fc"], hidden, inner, [ranks.part(inner)])
        self.mlp_out = RowParallelLinear.read_transposed(kernels, scope["mlp"]["c_proj"], inner, hidden, ranks)

    def forward(self, hidden: torch.Tensor, batch: RaggedBatch, last: LastTokens | None) -> torch.Tensor:
        """See ModelPartition.forward."""
        query, key, value = (part.unflatten(1, self.heads) for part in self.qkv(self.norm_1(hidden)).chunk(3, dim=1))
        if last is not None:
            query, hidden, batch = query[last.tokens], hidden[last.tokens], last.ragged
        hidden = self.attention_out(self.attention(query, key, value, batch), hidden)
        output: torch.Tensor = self.mlp_out(self.mlp_in(self.norm_2(hidden)), hidden)
        return output


class Gpt2Partition(ModelPartition):
    """One inter-layer partition of GPT-2."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, share: Share) -> None:
        super().__init__()
        root = Scope(checkpoint)
        # The first checkpoints of GPT-2 were saved without the prefix.
        scope = root["transformer"] if "transformer.wte.weight" in root else root
        vocabulary = config.vocabulary_size
        mine = (share.ranks.part(vocabulary),)
        if share.first or (share.last and config.tied_head):
            tokens = scope.read("wte.weight", vocabulary, config.hidden_size, part=mine)
        if share.first:
            self.token_embedding = VocabularyEmbedding(tokens, vocabulary, share.ranks)
            self.position_embedding = Embedding(scope.read("wpe.weight", config.max_positions, config.hidden_size))
        self.layers = nn.ModuleList(
            Gpt2Layer(config, scope["h"][layer], share.kernels, share.ranks)
            for layer in config.layers_of(share.partition, share.num_partitions)
        )
        if share.last:
            self.final_norm = LayerNorm(scope["ln_f"], config.hidden_size, config.norm_epsilon, share.kernels)
            if not config.tied_head:
                tokens = root["lm_head"].read("weight", vocabulary, config.hidden_size, part=mine)
            self.head = Head(tokens, vocabulary, share.kernels, share.ranks)

    def embed(self, tokens: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """See ModelPartition."""
        embedded: torch.Tensor = self.token_embedding(tokens) + self.position_embedding(batch.positions)
        return embedded

    def forward(self, hidden: torch.Tensor, batch: RaggedBatch, last: LastTokens | None) -> torch.Tensor:
        """See ModelPartition."""
        *others, final = self.layers
        for layer in others:
            hidden = layer(hidden, batch, None)
        output: torch.Tensor = final(hidden, batch, last)
        return output

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ModelPartition."""
        logits: torch.Tensor = self.head(self.final_norm(hidden))
        return logits.float()
