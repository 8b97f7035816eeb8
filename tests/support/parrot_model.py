"""A checkpoint that gives prepared answers: after each token it generates the one token that follows in a script.

One layer whose output is zero, one-hot embeddings, and a head that maps each token to its successor. The last token of
a prompt, a special token of the chat template, thus decides about the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
HEAD_SIZE, HEADS = 80, 4
WIDTH = HEAD_SIZE * HEADS
"""Also the limit of the vocabulary: an embedding per token, orthogonal to all others."""
CERTAIN = 100.0
"""Weight of a successor in the head: every temperature gives the same answer."""


def make_parrot(
    folder: Path, template: str, scripts: Mapping[str, Sequence[str]], loop: str = "", context: int = 8192
) -> Path:
    """Write a checkpoint into `folder`. `scripts`: by the prompt's last token the texts of the answer's tokens.

    No text occurs twice. The script of the last token `loop` never ends: its last text is followed by its first.
    """
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = [
        "".join(token for token, _ in level.pre_tokenize_str(text)) for script in scripts.values() for text in script
    ]
    alphabet = sorted(level.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, *pieces])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.add_special_tokens([END, *scripts])
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    size = tokenizer.get_vocab_size()
    assert size <= WIDTH, "too many texts"
    end = tokenizer.token_to_id(END)
    successors = [end] * size
    place = len(alphabet)
    for name, script in scripts.items():
        ids = [*range(place, place + len(script)), place if name == loop else end]
        for token, successor in zip([tokenizer.token_to_id(name), *ids[:-1]], ids, strict=True):
            successors[token] = successor
        place += len(script)

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "config.json").write_text(json.dumps(_config(size, context)))
    save_file(_weights(size, successors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _config(size: int, context: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "vocab_size": size,
        "dtype": "float32",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


def _weights(size: int, successors: Sequence[int]) -> dict[str, torch.Tensor]:
    layer = "model.layers.0."
    head = torch.zeros(size, WIDTH)
    head[torch.tensor(successors), torch.arange(size)] = CERTAIN
    return {
        "model.embed_tokens.weight": torch.eye(size, WIDTH),
        "model.norm.weight": torch.ones(WIDTH),
        "lm_head.weight": head,
        **{f"{layer}{name}_layernorm.weight": torch.ones(WIDTH) for name in ("input", "post_attention")},
        **{f"{layer}self_attn.{name}_proj.weight": torch.zeros(WIDTH, WIDTH) for name in "qkvo"},
        **{f"{layer}mlp.{name}_proj.weight": torch.zeros(64, WIDTH) for name in ("gate", "up")},
        f"{layer}mlp.down_proj.weight": torch.zeros(WIDTH, 64),
    }
