"""The fields of tokenizer_config.json that are read."""

from __future__ import annotations

import json

import pytest
from orca_master.text.tokenizer_config import TokenizerConfigFile, read_tokenizer_config
from orca_protos.model_files import FileError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast


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


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, {"bos_token": "<s>", "eos_token": "</s>"}),
        ({"bos_token": "other", "unk_token": "<unk>"}, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
        ({"bos_token": "other", "added_tokens_decoder": {}}, {"bos_token": "other"}),
    ],
    ids=["no file", "older file", "newer file"],
)
def test_an_older_model_has_its_special_tokens_in_a_file_of_their_own(config, expected, tmp_path):
    """As transformers, which reads the same tokens from the same files."""
    path = tmp_path / "special_tokens_map.json"
    path.write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "additional_special_tokens": ["a"]})
    )
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_tokenizer_config(tmp_path).special_tokens == expected
    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2, "other": 3, "a": 4}
    Tokenizer(WordLevel(vocabulary, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert {name: tokenizer.special_tokens_map[name] for name in expected} == expected
    path.write_text(json.dumps({"eos_token": 1}))
    if config is None or "added_tokens_decoder" not in config:
        with pytest.raises(FileError, match=r"special_tokens_map.json: .*eos_token"):
            read_tokenizer_config(tmp_path)
