"""Digests by samples: equal for copies, other ones for other files; test_model_identity.py has those of weights."""

from __future__ import annotations

import pytest
from orca_protos.file_digest import DIGITS, SAMPLE_BYTES, TOKENIZER_SAMPLES, sampled_digest, tokenizer_digest
from orca_protos.model_files import FileError, MissingFileError


def test_a_file_that_fits_the_samples_is_compared_as_a_whole(tmp_path):
    content = bytearray(b"x" * (4 * SAMPLE_BYTES))
    digests = set()
    for place in (None, 0, SAMPLE_BYTES + 7, len(content) - 1):
        if place is not None:
            content[place] ^= 1
        (tmp_path / "a").write_bytes(content)
        digests.add(sampled_digest(tmp_path, "a", 4))
    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {DIGITS}


def test_of_a_longer_file_size_beginning_and_end_count(tmp_path):
    content = b"x" * (9 * SAMPLE_BYTES)
    variants = [content, content + b"x", b"y" + content[1:], content[:-1] + b"y"]
    digests = set()
    for variant in variants:
        (tmp_path / "a").write_bytes(variant)
        digests.add(sampled_digest(tmp_path, "a", 2))
    assert len(digests) == len(variants)


def test_a_file_that_cannot_be_read_is_an_error_and_no_tokenizer(tmp_path):
    with pytest.raises(MissingFileError):
        sampled_digest(tmp_path, "a", 2)
    assert tokenizer_digest(tmp_path) == ""
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(FileError):
        sampled_digest(tmp_path, "tokenizer.json", 2)
    assert tokenizer_digest(tmp_path) == ""


def test_the_digest_of_a_tokenizer_is_that_of_its_samples(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_digest(tmp_path) == sampled_digest(tmp_path, "tokenizer.json", TOKENIZER_SAMPLES)
