"""The fields of tokenizer_config.json that are read."""

from __future__ import annotations

import json

import pytest
from orca_master.text.tokenizer_config import TokenizerConfigFile, read_tokenizer_config
from orca_protos.model_files import FileError


def test_special_tokens_and_templates_in_both_forms(tmp_path):
    assert read_tokenizer_config(tmp_path) == TokenizerConfigFile()
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "x"}))
    read = read_tokenizer_config(tmp_path)
    assert read.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert read.templates == {"default": "x"}
    path.write_text(json.dumps({"chat_template": [{"name": "tool_use", "template": "t"}]}))
    assert read_tokenizer_config(tmp_path).templates == {"tool_use": "t"}
    path.write_text(json.dumps({"eos_token": 1}))
    with pytest.raises(FileError, match="eos_token"):
        read_tokenizer_config(tmp_path)
