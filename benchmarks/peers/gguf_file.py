"""Writes a checkpoint of gpt2 or llama as a GGUF file without a vocabulary, for llama.cpp.

Names and keys are those of GGUF's specification, which is in ggml's repository, and of llama.cpp's own model files. A
linear map is stored with one row per output. Both models map to logits with the embedding, which is not written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GPT2 = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
LLAMA = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
LAYER = re.compile(r"^(?:transformer\.h|model\.layers)\.(\d+)\.(.*)$")


def write_gguf(model: Path, path: Path) -> None:
    """Write the checkpoint in folder `model` in float32; raise ValueError for another model type."""
    import gguf

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] not in ("gpt2", "llama"):
        raise ValueError(f"models of type {config['model_type']} cannot be written as GGUF (choose gpt2 or llama)")
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if config["model_type"] == "gpt2":
        _add_gpt2(writer, config)
    else:
        _add_llama(writer, config)
    for name, tensor in _tensors(model, config):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_gpt2(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config.get("n_inner") or 4 * config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])


def _add_llama(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])


def _tensors(model: Path, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    import numpy
    from safetensors.numpy import load_file

    gpt2 = config["model_type"] == "gpt2"
    names = GPT2 if gpt2 else LLAMA
    for name, stored in load_file(model / "model.safetensors").items():
        if name == "lm_head.weight":
            continue
        layer = LAYER.match(name)
        module, _, kind = (layer[2] if layer else name).rpartition(".")
        value = stored.T if gpt2 and layer and stored.ndim == 2 else stored  # GPT-2 stores one row per input
        if module in ("self_attn.q_proj", "self_attn.k_proj"):
            value = _neighbours(value, config["num_attention_heads" if "q_proj" in module else "num_key_value_heads"])
        prefix = f"blk.{layer[1]}." if layer else ""
        yield f"{prefix}{names[module]}.{kind}", numpy.ascontiguousarray(value, dtype=numpy.float32)


def _neighbours(weight: Any, heads: int) -> Any:
    """Reorder the rows of a head for llama.cpp, which rotates neighbouring pairs; transformers pairs the halves."""
    rows, inputs = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, inputs).swapaxes(1, 2).reshape(rows, inputs)
