"""The folder of a model, and what a user who names a model of a hub is told."""

from __future__ import annotations

import pytest
from orca_master.commands.model_folder import model_folder
from orca_master.errors import ConfigurationError

DIRECTORY = "a Hugging Face model directory is expected"


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("Qwen/Qwen3-0.6B", "download the model first, orca fetch hf://Qwen/Qwen3-0.6B --into DIR, and give DIR"),
        ("hf://gpt2/a", "download the model first, orca fetch hf://gpt2/a --into DIR, and give DIR"),
        ("s3://bucket/a/b", "download the model first, orca fetch s3://bucket/a/b --into DIR, and give DIR"),
        ("/nowhere/model", DIRECTORY),
        ("./nowhere/model", DIRECTORY),
        ("../model", DIRECTORY),
        ("a/b/c", DIRECTORY),
        ("model", DIRECTORY),
        ("here/empty", DIRECTORY),
        ("ä/b", DIRECTORY),
    ],
)
def test_a_name_without_a_model_there(tmp_path, monkeypatch, name, way_out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "empty").mkdir(parents=True)
    with pytest.raises(ConfigurationError) as raised:
        model_folder(name)
    assert str(raised.value) == f"{name}: no config.json: {way_out}"


def test_a_folder_with_the_name_of_a_model_of_a_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    (tmp_path / "here" / "model" / "config.json").write_text("{}")
    assert model_folder("here/model") == (tmp_path / "here" / "model").resolve()
