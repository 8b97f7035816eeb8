"""The build of torch that `make run` and the worker's image install: tools/install_torch.py on stand-in indexes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import install_torch
import pytest
from install_torch import Choice, InstallError, Pip, choose, describe
from support.package_index import bare_environment, make_wheel, serve_index

pytestmark = pytest.mark.exhaustive
TORCH = "torch==2.13.0"
CUDA = ("nvidia-cudnn-cu13==9.20.0.48",)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a user's machine: no settings, and an empty virtual environment whose path is returned."""
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in bare_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path / "venv" / "bin" / "python"


@pytest.fixture
def pip(machine, tmp_path) -> Pip:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"{TORCH}\n")
    return Pip(str(machine), constraints)


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Serve a stand-in for the public registry: its torch requires a package of CUDA."""
    make_wheel(tmp_path / "registry" / "torch", "torch", "2.13.0", CUDA)
    make_wheel(tmp_path / "registry" / "nvidia-cudnn-cu13", "nvidia-cudnn-cu13", "9.20.0.48")
    with serve_index(tmp_path / "registry") as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        yield url


@pytest.fixture
def cpu_index(tmp_path):
    """Serve a stand-in for PyTorch's index of CPU builds."""
    make_wheel(tmp_path / "cpu" / "torch", "torch", "2.13.0+cpu")
    with serve_index(tmp_path / "cpu") as url:
        yield url


@pytest.fixture
def find_links(tmp_path, monkeypatch):
    """Return a folder with a CPU build, named in the file of pip's configuration."""
    make_wheel(tmp_path / "wheels", "torch", "2.13.0+cpu")
    (tmp_path / "pip.conf").write_text(f"[global]\nfind-links = {tmp_path}/wheels\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))


@pytest.fixture
def silent_index():
    """Yield an index that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def installed(python: Path) -> str:
    (info,) = python.parents[1].glob("lib/python*/site-packages/torch-*.dist-info")
    return info.name.removeprefix("torch-").removesuffix(".dist-info")


def choice_of(pip: Pip, device: str, index: str | None, cpu_index: str) -> Choice:
    choice = choose(pip, TORCH, device, index, cpu_index)
    assert choice is not None
    return choice


def test_a_cpu_build_of_pips_configuration_comes_first(pip, machine, registry, find_links, cpu_index, tmp_path):
    choice = choice_of(pip, "cpu", None, cpu_index)
    assert (choice.build.version, choice.index, choice.build.has_cuda) == ("2.13.0+cpu", None, False)
    assert describe(choice) == f"torch 2.13.0+cpu, CPU build: 0 MB from {tmp_path}/wheels (known to pip)"
    pip.install(choice)
    assert installed(machine) == "2.13.0+cpu"


def test_then_the_cpu_index_if_it_answers(pip, machine, registry, cpu_index):
    choice = choice_of(pip, "cpu", None, cpu_index)
    assert (choice.build.version, choice.index) == ("2.13.0+cpu", cpu_index)
    assert describe(choice) == "torch 2.13.0+cpu, CPU build: 0 MB from 127.0.0.1 (PyTorch's CPU index)"
    pip.install(choice)
    assert installed(machine) == "2.13.0+cpu"


def test_else_the_default_registry(pip, machine, registry, silent_index):
    choice = choose(pip, TORCH, "cpu", None, silent_index, patience=0.2)
    assert choice is not None
    assert (choice.build.version, choice.index, choice.build.has_cuda) == ("2.13.0", None, True)
    assert describe(choice).startswith(
        "torch 2.13.0, with CUDA (2 wheels): 0 MB from 127.0.0.1 (PyTorch's CPU index did"
    )
    pip.install(choice)
    assert installed(machine) == "2.13.0"


def test_a_cpu_index_without_a_build_for_this_python_is_passed_over(pip, registry, tmp_path):
    (tmp_path / "other" / "torch").mkdir(parents=True)
    with serve_index(tmp_path / "other") as empty:
        assert choice_of(pip, "cpu", None, empty).build.version == "2.13.0"


@pytest.mark.parametrize("version", ["2.13.0+cu126", "2.13.0"])
def test_an_index_given_by_hand_is_the_only_source(version, pip, machine, registry, find_links, cpu_index, tmp_path):
    """Also if its version is lower in order than a build that pip's configuration offers."""
    make_wheel(tmp_path / "mine" / "torch", "torch", version)
    with serve_index(tmp_path / "mine") as mine:
        choice = choice_of(pip, "cpu", mine, cpu_index)
        assert (choice.build.version, choice.index, choice.reason) == (version, mine, "chosen by TORCH_INDEX")
        pip.install(choice)
    assert installed(machine) == version


def test_for_cuda_the_registrys_build_is_taken_even_if_pip_prefers_a_cpu_build(pip, machine, registry, find_links):
    choice = choice_of(pip, "cuda", None, "http://127.0.0.1:1")
    assert (choice.build.version, choice.build.has_cuda) == ("2.13.0", True)
    pip.install(choice)
    assert installed(machine) == "2.13.0"


def test_no_build_with_cuda_is_an_error_that_names_the_way_out(pip, find_links, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(InstallError, match="torch==="):
        choose(pip, TORCH, "cuda", None)


def test_an_installed_torch_is_kept(pip, registry, cpu_index):
    pip.install(choice_of(pip, "cpu", None, cpu_index))
    assert choose(pip, TORCH, "cpu", None, cpu_index) is None


def test_the_probe_is_bounded(silent_index, cpu_index):
    assert not install_torch.answers(silent_index, 0.2)
    assert not install_torch.answers("http://127.0.0.1:1", 60)
    assert install_torch.answers(cpu_index, 60)


def test_the_command_installs_and_prints_one_line(machine, registry, tmp_path, capfd):
    """`TORCH_INDEX=…` of the Makefile and the Dockerfile is `--index`."""
    make_wheel(tmp_path / "mine" / "torch", "torch", "2.13.0+cu126", CUDA)
    with serve_index(tmp_path / "mine") as mine:
        assert install_torch.main(["--python", str(machine), "--index", mine]) == 0
    line = "torch 2.13.0+cu126, with CUDA (2 wheels): 0 MB from 127.0.0.1 (chosen by TORCH_INDEX)"
    assert capfd.readouterr().out.splitlines()[0] == line
    assert installed(machine) == "2.13.0+cu126"


def test_constraints_name_one_version_of_torch():
    assert install_torch.torch_requirement().startswith("torch==")
