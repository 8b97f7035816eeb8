"""Tensors of a GGUF file: llama.cpp's names, one row per output, rows of heads in the order of its rotation."""

from __future__ import annotations

import sys

import numpy
import pytest
from safetensors.numpy import save_file
from support.peer_programs import peer_program


@pytest.fixture
def gguf_file():
    with peer_program("gguf_file") as module:
        yield module


def test_gpt2(gguf_file, tmp_path):
    stored = {
        "transformer.wte.weight": numpy.arange(12, dtype=numpy.float32).reshape(4, 3),
        "transformer.h.10.attn.c_attn.weight": numpy.arange(27, dtype=numpy.float32).reshape(3, 9),
        "transformer.h.10.attn.c_attn.bias": numpy.arange(9, dtype=numpy.float32),
        "transformer.ln_f.bias": numpy.ones(3, dtype=numpy.float32),
    }
    save_file(stored, tmp_path / "model.safetensors")
    written = dict(gguf_file._tensors(tmp_path, {"model_type": "gpt2"}))
    assert set(written) == {"token_embd.weight", "blk.10.attn_qkv.weight", "blk.10.attn_qkv.bias", "output_norm.bias"}
    assert (written["token_embd.weight"] == stored["transformer.wte.weight"]).all()
    assert (written["blk.10.attn_qkv.weight"] == stored["transformer.h.10.attn.c_attn.weight"].T).all()


def test_llama_pairs_neighbouring_rows_of_queries_and_keys(gguf_file, tmp_path):
    rows = numpy.arange(8, dtype=numpy.float32).reshape(8, 1)
    names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj"]
    save_file({f"model.layers.0.{name}.weight": rows for name in names}, tmp_path / "model.safetensors")
    config = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 1}
    written = {name: value.ravel().tolist() for name, value in gguf_file._tensors(tmp_path, config)}
    assert written == {
        "blk.0.attn_q.weight": [0, 2, 1, 3, 4, 6, 5, 7],
        "blk.0.attn_k.weight": [0, 4, 1, 5, 2, 6, 3, 7],
        "blk.0.attn_v.weight": list(range(8)),
        "blk.0.ffn_gate.weight": list(range(8)),
    }


def test_another_model_is_refused(gguf_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", object())
    (tmp_path / "config.json").write_text('{"model_type": "opt"}')
    with pytest.raises(ValueError, match=r"type opt cannot be written as GGUF \(choose gpt2 or llama\)"):
        gguf_file.write_gguf(tmp_path, tmp_path / "out.gguf")
