"""Environments of the other engines: what is installed into them, and one line where that is impossible."""

from __future__ import annotations

import json
import re
import sys

import pytest
from orca_bench.peer_settings import SETTINGS
from support.peer_programs import peer_program


@pytest.fixture
def environments():
    with peer_program("environments") as module:
        yield module


@pytest.fixture
def commands(environments, monkeypatch):
    """Record the commands with their variables instead of running them; `metadata` requires package `own`."""
    run = []

    def record(command, variables=None, folder=None):
        run.append((command, variables or {}))
        if "venv" in command:
            (home := environments.Path(command[-1])).mkdir(parents=True)
            (home / "stale").touch()
        return json.dumps(["kept>=1", "torch==2.0", "left-out", "of-an-extra; extra == 'x'"])

    monkeypatch.setattr(environments, "_run", record)
    return run


@pytest.mark.parametrize("engine", sorted({setting.engine for setting in SETTINGS.values()}))
def test_each_engine_states_the_versions_that_it_needs(environments, engine):
    dependencies = environments._metadata(engine)["dependencies"]
    assert dependencies
    assert all(re.fullmatch(r"[\w-]+==[\d.]+|orca-serving\[worker\] @ \{repository\}", entry) for entry in dependencies)


def test_llama_cpp_is_built_from_its_sources_for_this_processor_without_torch(environments, commands, tmp_path):
    environments.environment_of("llama_cpp", folder=tmp_path)
    command, variables = commands[-1]
    assert command[command.index("--no-binary") :][:3] == ["--no-binary", "llama-cpp-python", "--no-cache-dir"]
    assert "-DGGML_NATIVE=ON" in variables["CMAKE_ARGS"]
    assert not any("torch" in part for command, _ in commands for part in command)


def test_dependencies_that_would_replace_torch_are_left_out(environments, commands, tmp_path, monkeypatch):
    metadata = {"dependencies": ["own==1"], "without": ["left-out"]}
    monkeypatch.setattr(environments, "_metadata", lambda name: metadata)
    environments.environment_of("anything", folder=tmp_path)
    assert commands[-1][0][-2:] == [environments.TORCH, "kept>=1"]


def test_an_environment_is_made_again_when_its_metadata_changes(environments, commands, tmp_path, monkeypatch):
    python = environments.environment_of("transformers_generate", folder=tmp_path)
    assert python == tmp_path / "transformers_generate" / "bin" / "python"
    made = len(commands)
    environments.environment_of("transformers_generate", folder=tmp_path)
    assert len(commands) == made
    monkeypatch.setattr(environments, "_metadata", lambda name: {"dependencies": ["other==2"]})
    environments.environment_of("transformers_generate", folder=tmp_path)
    assert commands[-1][0][-1] == "other==2"


def test_a_command_that_fails_is_one_line(environments):
    program = "import sys; sys.exit('ERROR: Could not find x\\nERROR: No matching distribution found for x\\nhint')"
    with pytest.raises(environments.EnvironmentFailed, match=r"^ERROR: No matching distribution found for x$"):
        environments._run([sys.executable, "-c", program])
    with pytest.raises(environments.EnvironmentFailed, match=r"^no output$"):
        environments._run([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_library_is_found_in_the_environment(environments, tmp_path):
    python = tmp_path / "bin" / "python"
    path = tmp_path / "debian" / "usr" / "lib" / "libtcmalloc_minimal.so.4.5.9"
    path.parent.mkdir(parents=True)
    path.touch()
    assert environments.library(python, "libtcmalloc_minimal.so.4") == str(path)
    with pytest.raises(environments.EnvironmentFailed, match=r"^no library libabsent\.so in "):
        environments.library(python, "libabsent.so")
