"""Incremental detokenisation and stop strings, one token at a time."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.errors import ConfigurationError, RequestError
from orca_master.text.tokenizer import TextCodec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    """Every byte is a token; some pairs of letters too; one special token."""
    path = tmp_path_factory.mktemp("codec")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("a", "b"), ("b", "c"), ("c", "a")]
    vocabulary = {token: index for index, token in enumerate([*alphabet, *("".join(pair) for pair in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return TextCodec(path)


@given(
    text=st.text("abc é🙂", max_size=30),
    stops=st.lists(st.text("abc é", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
)
def test_pieces_make_up_the_text_before_the_first_stop_string(codec, text, stops, include):
    decoder = codec.decoder(stops, include, skip_special_tokens=True)
    tokens = codec.encode(text)
    pieces = []
    for index, token in enumerate(tokens):
        pieces.append(decoder.step(token, last=index == len(tokens) - 1))
        if decoder.stop_string is not None:
            break
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    # The stop string that is complete first ends the text, as one that reads along would see it.
    ends = [(place + len(stop), place) for place, stop in found]
    said = "".join(pieces)
    assert (decoder.stop_string is not None) == bool(found)
    assert decoder.stop_string is None or decoder.stop_string in stops
    if not found:
        assert said == text
    elif include:
        assert any(said.endswith(stop) for _, stop in found)
        assert text.startswith(said)
        assert len(said) <= min(end for end, _ in ends) + 4
    else:
        assert text.startswith(said)
        assert not any(stop in said for _, stop in found)


def test_nothing_of_a_stop_string_gets_out_before_it_is_complete(codec):
    decoder = codec.decoder(["abcab"], False, skip_special_tokens=True)
    said = [decoder.step(token, last=False) for token in codec.encode("xab") + codec.encode("ca") + codec.encode("x")]
    assert "".join(said) == "xabcax"
    assert said[0] == "x"
    assert said[-1] == "abcax"


def test_incomplete_characters_wait(codec):
    decoder = codec.decoder([], False, skip_special_tokens=True)
    said = [decoder.step(token, last=False) for token in codec.encode("é🙂")]
    assert said == ["", "é", "", "", "", "🙂"]


@given(st.text(max_size=30))
def test_the_bytes_of_the_tokens_make_up_the_text(codec, text):
    """Also those of characters that have several tokens, whose texts are replacement characters."""
    assert b"".join(map(codec.token_bytes, codec.encode(text))) == text.encode()


def test_the_bytes_of_a_vocabulary_of_sentencepiece(tmp_path):
    names = ["▁a", "b", *(f"<0x{byte:02X}>" for byte in range(256)), "\ufffd", "é"]
    tokenizer = Tokenizer(models.BPE({name: place for place, name in enumerate(names)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = TextCodec(tmp_path)
    parts = [f"<0x{byte:02X}>" for byte in " 🙂".encode()]
    tokens = [tokenizer.token_to_id(name) for name in ("▁a", "b", *parts, "▁a", "\ufffd", "é")]
    assert b"".join(map(codec.token_bytes, tokens)).decode() == " ab 🙂 a\ufffdé"


def test_special_tokens_are_shown_on_request(codec):
    (end,) = codec.encode("<end>")
    assert codec.decoder([], False, skip_special_tokens=True).step(end, last=True) == ""
    assert codec.decoder([], False, skip_special_tokens=False).step(end, last=True) == "<end>"


def test_without_a_tokenizer_there_are_token_ids_only(tmp_path):
    codec = TextCodec(tmp_path)
    with pytest.raises(RequestError, match="send a list of token ids to /v1/completions or /v1/embeddings"):
        codec.encode("text")
    with pytest.raises(RequestError, match="use stop_token_ids"):
        codec.decoder(["stop"], False, skip_special_tokens=True)
    assert codec.decoder([], False, skip_special_tokens=True).step(3, last=True) == ""


def test_generation_config_decides_over_config(tmp_path):
    assert TextCodec(tmp_path).stop_token_ids == frozenset()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert TextCodec(tmp_path).stop_token_ids == {5}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert TextCodec(tmp_path).stop_token_ids == {7, 8}


def test_the_tokenizers_end_of_sequence_is_a_stop_token_beside_those_of_the_configuration(tmp_path):
    """A fine-tuned model may name it in tokenizer_config.json alone."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, "a"))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    configuration = tmp_path / "tokenizer_config.json"
    for eos, expected in (("<end>", {0, 1}), ({"content": "<end>"}, {0, 1}), ("absent", {0}), (None, {0})):
        configuration.write_text(json.dumps({"eos_token": eos}))
        assert TextCodec(tmp_path).stop_token_ids == expected
    configuration.write_text("[]")
    with pytest.raises(ConfigurationError, match="tokenizer_config"):
        TextCodec(tmp_path)


def test_errors_and_panics_of_the_library_are_request_errors(codec, tmp_path):
    """An expression that backtracks without bound only on texts that the check at start does not know."""
    saved = json.loads(codec._tokenizer.to_str())
    saved["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": "(c+)+$"}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    hostile = TextCodec(tmp_path)
    assert hostile.encode("abc")
    with pytest.raises(RequestError, match=r"the model's tokenizer fails on this text: .*retry-limit") as refused:
        hostile.encode("c" * 40 + "!")
    assert "\n" not in str(refused.value)


def test_prompts_are_neither_cut_nor_padded(codec, tmp_path):
    saved = json.loads(codec._tokenizer.to_str())
    saved["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}
    saved["padding"] = {
        "strategy": {"Fixed": 2**33}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "x",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    assert TextCodec(tmp_path).encode("hello") == codec.encode("hello")


@pytest.mark.parametrize(
    ("config", "template", "begins", "ends"),
    [
        ({"add_eos_token": True, "eos_token": "</s>"}, "<s> $A", 1, 1),  # e5-mistral-7b-instruct
        ({"add_eos_token": True, "eos_token": {"content": "</s>"}}, "$A", 0, 1),
        ({"add_eos_token": True, "eos_token": "</s>"}, "<s> $A </s>", 1, 1),
        ({"add_eos_token": True, "eos_token": "<s>"}, "<s> $A", 1, 1),
        ({"add_eos_token": False, "eos_token": "</s>"}, "<s> $A", 1, 0),
        ({"add_eos_token": "true", "eos_token": "</s>"}, "<s> $A", 1, 0),
        ({"eos_token": "</s>"}, "<s> $A", 1, 0),
        ({"add_eos_token": True}, "<s> $A", 1, 0),
        ({"add_eos_token": True, "eos_token": "absent"}, "<s> $A", 1, 0),
    ],
)
def test_a_text_to_embed_ends_as_tokenizer_config_says(config, template, begins, ends, codec, tmp_path):
    """The embedding of e5-mistral-7b-instruct is that of </s>, which its tokenizer.json does not add."""
    tokenizer = Tokenizer.from_str(codec._tokenizer.to_str())
    tokenizer.add_special_tokens(["<s>", "</s>"])
    names = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=names)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    made, (begin, end) = TextCodec(tmp_path), (token for _, token in names)
    if config.get("eos_token") == "<s>":
        end = begin
    assert made.encode_to_embed("ab") == [begin] * begins + made.encode("ab", add_special_tokens=False) + [end] * ends
    assert made.encode("ab")[-1] != end or template.endswith("</s>"), "a prompt goes on"
