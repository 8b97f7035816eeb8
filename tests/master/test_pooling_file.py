"""The pooling of embeddings by the files of sentence-transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from orca_master.errors import ConfigurationError
from orca_master.text.pooling_file import pooling_of
from orca_master.text.pooling_schema import FLAGS

OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules.pooling."


def write(folder: Path, pooling: dict[str, Any] | None, *others: str, package: str = OLD) -> Path:
    """Write modules.json with a pooling and the modules `others`, and the pooling's config.json, unless it is None."""
    entries = [("Transformer", ""), ("Pooling", "1_Pooling"), *((other, f"2_{other}") for other in others)]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": package + kind}
        for index, (kind, path) in enumerate(entries)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def flags(*modes: str) -> dict[str, Any]:
    return {"word_embedding_dimension": 8, "include_prompt": True} | {
        flag: mode in modes for flag, mode in FLAGS.items()
    }


@pytest.mark.parametrize(
    ("file", "pooling"),
    [
        (flags("lasttoken"), "last"),
        (flags("mean"), "mean"),
        (flags("mean_sqrt_len_tokens"), "mean"),
        ({"embedding_dimension": 8, "pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode": "lasttoken", **flags("mean")}, "last"),
        ({"word_embedding_dimension": 8}, "mean"),
    ],
)
@pytest.mark.parametrize("package", [OLD, NEW])
def test_the_mode_of_the_file(tmp_path, file, pooling, package):
    assert pooling_of(write(tmp_path, file, "Normalize", package=package), "auto") == pooling


@pytest.mark.parametrize(
    ("file", "others", "message"),
    [
        (flags("cls"), (), "1_Pooling/config.json: pooling 'cls' is not supported"),
        (flags("weightedmean"), (), "pooling 'weightedmean' is not supported"),
        (flags("mean", "max"), (), r"pooling 'max\+mean' is not supported"),
        ({"pooling_mode": ["mean", "lasttoken"]}, (), r"pooling 'mean\+lasttoken' is not supported"),
        ({"pooling_mode": []}, (), "pooling '' is not supported"),
        ({"pooling_mode": 1}, (), "1_Pooling/config.json: pooling_mode"),
        (flags("mean"), ("Dense",), r"modules.json: module 'sentence_transformers.models.Dense' is not supported"),
    ],
)
def test_what_is_not_supported_is_named_unless_the_option_decides(tmp_path, file, others, message):
    write(tmp_path, file, *others)
    with pytest.raises(ConfigurationError, match=f"{message}.*: choose the pooling with --embedding-pooling$"):
        pooling_of(tmp_path, "auto")
    assert pooling_of(tmp_path, "mean") == "mean"


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[1]",
        b"[",
        b'[{"path": "x"}]',
        b'[{"type": "a.Pooling", "path": "../x"}]',
        b'[{"type": "a.Pooling", "path": "x\\nready"}]',
    ],
)
def test_a_broken_list_of_modules_is_refused(tmp_path, content):
    (tmp_path / "modules.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"modules.json: "):
        pooling_of(tmp_path, "auto")


def test_a_line_says_what_the_files_have_decided(tmp_path, caplog):
    """The mean may be new after an update, and stored vectors would not match."""
    caplog.set_level(logging.INFO)
    pooling_of(write(tmp_path, flags("mean")), "auto")
    assert caplog.messages == [f"--embedding-pooling auto: mean, by {tmp_path / 'modules.json'}"]
    pooling_of(tmp_path, "last")
    assert len(caplog.messages) == 1


def test_without_files_it_is_the_last_token(tmp_path, caplog):
    assert pooling_of(tmp_path, "auto") == "last"
    assert not caplog.messages
    assert pooling_of(write(tmp_path, None), "auto") == "last"
    (line,) = caplog.messages
    assert "1_Pooling/config.json is missing: embeddings are those of the last token" in line
