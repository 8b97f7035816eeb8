"""Models with random weights, because the speed does not depend on the weights."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LAYERS, HIDDEN, HEADS, VOCABULARY = 12, 768, 12, 32_000
"""Shape of the models in the comparison with peers: 110 M parameters."""
LLAMA_INNER = 2048
"""MLP width: three matrices of this width have as many parameters as GPT-2's two of 3,072."""


LATER_LAYERS = 0.05
"""Weight of the outputs of the layers that a draft model lacks, so that it is right often but not always."""


def save_pair(path: Path, draft: Path, layers: int) -> None:
    """Write a `gpt2` as in `save_model`, and a draft model of its first `layers` layers, which is often right."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0))
    blocks: Any = model.transformer.h
    with torch.no_grad():
        for block in blocks[layers:]:
            for output in (block.attn.c_proj, block.mlp.c_proj):
                output.weight.mul_(LATER_LAYERS)
    model.save_pretrained(path)
    del blocks[layers:]
    model.config.n_layer = layers
    model.save_pretrained(draft)


def save_model(path: Path, family: str = "gpt2", vocabulary: int = VOCABULARY, positions: int = 1024) -> None:
    """Write a model with random weights: `gpt2`, or `llama` of the same size."""
    torch.manual_seed(0)
    shared: dict[str, Any] = {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0}
    if family == "gpt2":
        GPT2LMHeadModel(GPT2Config(**shared, n_positions=positions)).save_pretrained(path)
        return
    config = LlamaConfig(
        **shared, hidden_size=HIDDEN, intermediate_size=LLAMA_INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, max_position_embeddings=positions, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)


def save_letters_tokenizer(path: Path, vocabulary: int = VOCABULARY) -> None:
    """Add a tokenizer whose tokens are an end, all bytes, and groups of two and three lower-case letters.

    The rest of the vocabulary has words that occur in no text.
    """
    letters = string.ascii_lowercase
    pairs = [(first, second) for first in letters for second in letters]
    merges = pairs + [(first + second, third) for first, second in pairs for third in letters]
    words = ["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    words += [f"<unused {number}>" for number in range(vocabulary - len(words))]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(path)
