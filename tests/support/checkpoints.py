"""Small checkpoints with random weights, created by `transformers`, and its results as references."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:  # the import takes seven seconds of CPU time, which many test processes do not need
    from transformers import PreTrainedModel

VOCABULARY = 211
MAX_POSITIONS = 704
LONG_CONTEXT = 8_192


def make_model(name: str) -> PreTrainedModel:
    """Return a model of VARIANTS, with the same weights in every call."""
    return randomise(VARIANTS[name](), sum(name.encode()))


def randomise(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Give every parameter a value that changes the output, so that tests detect a parameter that is not used."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:  # norms and biases, which transformers initialises to one and zero
                parameter.add_(0.05 * noise)
                if model.config.model_type == "gemma2" and ".post_" in parameter_name:
                    parameter.add_(2)  # keeps the scaled embeddings small relative to the layers
            elif ".h." in parameter_name or ".layers." in parameter_name:
                parameter.copy_(noise * parameter.shape[0] ** -0.5 * 2)
            else:  # embeddings and head: small relative to the layers, or a tied model would repeat its input
                parameter.copy_(noise * 0.1)
    return model.eval()


def _gpt2(head_dim: int, tied: bool) -> PreTrainedModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=MAX_POSITIONS,
            n_embd=2 * head_dim,
            n_layer=5,
            n_head=2,
            tie_word_embeddings=tied,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def llama_like(family: str, kv_heads: int, head_dim: int, tied: bool, **options: Any) -> PreTrainedModel:
    """Return a model of one of the CONFIGURATIONS: 8 heads with 2 K/V heads, otherwise as many heads as K/V heads."""
    import transformers

    configuration = getattr(transformers, CONFIGURATIONS[family])
    return transformers.AutoModelForCausalLM.from_config(
        configuration(
            **{
                "vocab_size": VOCABULARY,
                "hidden_size": 96,
                "intermediate_size": 200,
                "num_hidden_layers": 5,
                "num_attention_heads": 8 if kv_heads == 2 else kv_heads,
                "num_key_value_heads": kv_heads,
                "head_dim": head_dim,
                "max_position_embeddings": MAX_POSITIONS,
                "tie_word_embeddings": tied,
                "bos_token_id": 0,
                "eos_token_id": 0,
                "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
                **options,
            }
        )
    )


CONFIGURATIONS = {
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "gemma2": "Gemma2Config",
    "ministral": "MinistralConfig",
}
SOME_LAYERS_SLIDE = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 3}
TURNS = ["full_attention", *["sliding_attention", "full_attention"] * 2]
CAPPED = {
    "sliding_window": 24,
    "query_pre_attn_scalar": 40,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
}
"""Caps low enough that many scores and logits of these small models reach them."""
VARIANTS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2-head64-tied": lambda: _gpt2(64, tied=True),
    "gpt2-head80-untied": lambda: _gpt2(80, tied=False),
    "llama-gqa-tied": lambda: llama_like("llama", 2, 64, tied=True),
    "llama-head80-untied": lambda: llama_like("llama", 4, 80, tied=False, attention_bias=True, mlp_bias=True),
    "mistral-gqa": lambda: llama_like("mistral", 2, 64, tied=False, sliding_window=40),
    "mistral-head80": lambda: llama_like("mistral", 4, 80, tied=False, sliding_window=None),
    "qwen2-gqa-tied": lambda: llama_like("qwen2", 2, 64, tied=True, **SOME_LAYERS_SLIDE),
    "qwen2-head80": lambda: llama_like("qwen2", 4, 80, tied=False),
    "qwen3-gqa-tied": lambda: llama_like("qwen3", 2, 64, tied=True, **SOME_LAYERS_SLIDE),
    "qwen3-unprefixed-tied": lambda: llama_like("qwen3", 2, 64, tied=True),
    "qwen3-head80": lambda: llama_like("qwen3", 4, 80, tied=False, attention_bias=True),
    "gemma2-gqa-tied": lambda: llama_like("gemma2", 2, 64, tied=True, **CAPPED),
    "gemma2-head80": lambda: llama_like("gemma2", 4, 80, tied=False, attention_bias=True, **CAPPED),
    "mistral-alternating": lambda: llama_like("ministral", 2, 64, tied=False, sliding_window=24, layer_types=TURNS),
}
"""Two of each family: GQA 8/2 and MHA, head dimension 64 and 80, head tied and untied, 5 layers; 211 is prime.

And one with the names of Qwen3-Embedding's tensors, and one of Ministral, which is Mistral with `layer_types`.
"""


def write_checkpoint(name: str, path: Path) -> None:
    """Write a variant's checkpoint to `path`; the names of an unprefixed one are those of the model without a head."""
    make_model(name).save_pretrained(path)
    if "-unprefixed" in name:
        weights = load_file(path / "model.safetensors")
        weights = {tensor.removeprefix("model."): values for tensor, values in weights.items()}
        save_file(weights, path / "model.safetensors", {"format": "pt"})


def save(name: str, folder: Path) -> Path:
    """Write a variant's checkpoint to `folder`/name and return that path."""
    path = folder / name
    write_checkpoint(name, path)
    return path


def with_tokenizer(checkpoint: Path, folder: Path, eos: int = 0) -> Path:
    """Copy a checkpoint into `folder` and add a tokenizer with one token per byte, up to the vocabulary's size."""
    path = folder / checkpoint.name
    shutil.copytree(checkpoint, path)
    plain = [chr(code) for code in range(33, 127)]
    alphabet = [
        "\u0120",
        "\u010a",
        *plain,
        *sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {*plain, "\u0120", "\u010a"}),
    ]
    vocabulary = {"<end>": 0} | {character: index + 1 for index, character in enumerate(alphabet[: VOCABULARY - 1])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [eos]}))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return path


def with_long_context(checkpoint: Path, folder: Path) -> Path:
    """Copy a checkpoint with rotary positions and raise its maximum length to LONG_CONTEXT tokens.

    For requests that a test interrupts: generating MAX_POSITIONS tokens may finish before the interruption.
    """
    path = shutil.copytree(checkpoint, folder / checkpoint.name)
    config = json.loads((path / "config.json").read_text())
    assert "rope_parameters" in config
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": LONG_CONTEXT}))
    return path


CHAT_TEMPLATE = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}{{ prefix | default('assistant:') }}{% endif %}"""


@dataclass(frozen=True)
class Reference:
    """Results of transformers for one prompt."""

    prompt: tuple[int, ...]
    greedy: list[int]
    logits: torch.Tensor
    """[len(prompt) + len(greedy) - 1, vocabulary] float32, one row per input token."""


def make_prompts(lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return fixed random prompts of these lengths."""
    generator = torch.Generator().manual_seed(7)
    return [tuple(torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()) for length in lengths]


def write_references(path: Path, name: str, prompts: list[tuple[int, ...]], num_tokens: int) -> None:
    """Write the results of transformers for prompts to a file for `read_references`."""
    model = make_model(name)
    tensors = {}
    for index, prompt in enumerate(prompts):
        expected = reference(model, prompt, num_tokens)
        tensors[f"greedy.{index}"] = torch.tensor(expected.greedy)
        tensors[f"logits.{index}"] = expected.logits.contiguous()
    save_file(tensors, path)


def read_references(path: Path, prompts: list[tuple[int, ...]]) -> list[Reference]:
    """Return the results that `write_references` has written for these prompts."""
    tensors = load_file(path)
    return [
        Reference(prompt, tensors[f"greedy.{index}"].tolist(), tensors[f"logits.{index}"])
        for index, prompt in enumerate(prompts)
    ]


@torch.inference_mode()
def reference(model: PreTrainedModel, prompt: tuple[int, ...], num_tokens: int) -> Reference:
    """Return greedy tokens by `generate`, and logits by one pass over prompt and tokens."""
    inputs = torch.tensor([prompt])
    model.generation_config.eos_token_id = None
    output = model.generate(inputs, max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
    greedy = output[0, len(prompt) :].tolist()
    logits = model(output[:, :-1]).logits[0]
    return Reference(prompt, greedy, logits)
