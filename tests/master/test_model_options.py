"""The names of the model, and the options about a draft model, which become a part of the topology, or an error."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from orca_contract.topology import ModelSpec
from orca_master.commands.model_options import add_model_options, model_spec
from orca_master.commands.options import add_engine_options, add_server_options, endpoint_config
from orca_master.errors import ConfigurationError


def spec_of(*options: str) -> ModelSpec:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    add_engine_options(parser)
    return model_spec(parser.parse_args(options), "/m", "m", "cpu")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ("folder",)),
        (("--served-model-name", "a"), ("a",)),
        (("--served-model-name", "a", "b"), ("a", "b")),
        (("--served-model-name", "a", "b", "--served-model-name=c"), ("a", "b", "c")),
    ],
)
def test_names_of_the_model(options, names):
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    add_engine_options(parser)
    add_server_options(parser)
    assert endpoint_config(parser.parse_args(options), Path("/m"), "folder").model_names == names


@pytest.mark.parametrize(("name", "words"), [("", "a name is empty"), ("x\udcff", "'x\\udcff' is not valid UTF-8")])
def test_a_name_that_no_answer_can_contain(name, words, capsys):
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--served-model-name", "a", name])
    assert f"argument --served-model-name: {words}" in capsys.readouterr().err


def test_no_draft_model_by_default():
    assert spec_of("--speculative-tokens", "4").draft_path is None


@pytest.mark.parametrize(
    ("folder", "path"), [("/models/draft/", "/models/draft"), ("draft", str(Path.cwd() / "draft"))]
)
def test_the_path_of_a_draft_model_is_absolute(folder, path):
    assert spec_of("--speculative-model", folder, "--speculative-tokens", "4").draft_path == path


@pytest.mark.parametrize("tokens", [(), ("--speculative-tokens", "0")])
def test_a_draft_model_needs_tokens_to_draft(tokens):
    with pytest.raises(ConfigurationError, match=r"^--speculative-model: set --speculative-tokens N, the most tokens"):
        spec_of("--speculative-model", "draft", *tokens)


def test_a_path_that_no_topology_can_have_is_refused_by_its_option():
    with pytest.raises(ConfigurationError, match=r"^--speculative-model: String should have at most 4096 "):
        spec_of("--speculative-model", f"/{'a' * 4096}", "--speculative-tokens", "4")
