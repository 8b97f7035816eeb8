"""Small checkpoints of random weights, made by `transformers`, and its answers to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

VOCABULARY = 211
MAX_POSITIONS = 704


def make_model(name: str) -> PreTrainedModel:
    """Returns one of the odd-sized models of VARIANTS, with the same weights every time."""
    model = VARIANTS[name]().eval()
    generator = torch.Generator().manual_seed(sum(name.encode()))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:  # norms and biases, which transformers starts at one and zero
                parameter.add_(0.05 * noise)
            elif ".h." in parameter_name or ".layers." in parameter_name:
                parameter.copy_(noise * parameter.shape[0] ** -0.5 * 2)
            else:  # embeddings and head: small against the layers, else a tied model repeats its input
                parameter.copy_(noise * 0.1)
    return model


def _gpt2(hidden: int, heads: int, tied: bool) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=MAX_POSITIONS,
            n_embd=hidden,
            n_layer=5,
            n_head=heads,
            tie_word_embeddings=tied,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def _llama(heads: int, kv_heads: int, head_dim: int, tied: bool) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=96,
            intermediate_size=200,
            num_hidden_layers=5,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=tied,
            rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
            bos_token_id=0,
            eos_token_id=0,
        )
    )


VARIANTS = {
    "gpt2-tied": lambda: _gpt2(hidden=96, heads=6, tied=True),
    "gpt2-head80-untied": lambda: _gpt2(hidden=160, heads=2, tied=False),
    "llama-gqa-tied": lambda: _llama(heads=8, kv_heads=2, head_dim=16, tied=True),
    "llama-head80-untied": lambda: _llama(heads=3, kv_heads=3, head_dim=80, tied=False),
}


def save(name: str, folder: Path) -> Path:
    """Writes a variant's checkpoint to `folder`/name and returns that path."""
    path = folder / name
    make_model(name).save_pretrained(path)
    return path


@dataclass(frozen=True)
class Reference:
    """What transformers says about one prompt."""

    prompt: tuple[int, ...]
    greedy: list[int]
    logits: torch.Tensor
    """[len(prompt) + len(greedy) - 1, vocabulary] float32, one row per input token."""


def make_prompts(lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns fixed random prompts of these lengths."""
    generator = torch.Generator().manual_seed(7)
    return [tuple(torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()) for length in lengths]


@torch.inference_mode()
def reference(model: PreTrainedModel, prompt: tuple[int, ...], num_tokens: int) -> Reference:
    """Greedy tokens by `generate`, logits by one pass over prompt and tokens."""
    inputs = torch.tensor([prompt])
    model.generation_config.eos_token_id = None
    output = model.generate(inputs, max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
    greedy = output[0, len(prompt) :].tolist()
    logits = model(output[:, :-1]).logits[0]
    return Reference(prompt, greedy, logits)
