"""Every extra can be installed under constraints.txt from the public registry alone; nothing is installed.

pip resolves for the interpreter that runs the tests, uv for every Python that pyproject.toml supports. Both read
metadata only, and only wheels count: an installation must not need a compiler.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.package_index import make_wheel, serve_index

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
COMBINATIONS = ["", *EXTRAS, ",".join(extra for extra in EXTRAS if extra != "cuda12")]
"""The last one covers each extra beside `worker`: versions that satisfy all requirements satisfy a part of them."""
PYTHONS = ["3.11", "3.12", "3.13"]
CONSTRAINTS = ["--constraint", str(ROOT / "constraints.txt"), "--only-binary", ":all:"]
UV = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header", *CONSTRAINTS]


def requirements(extras: str) -> list[str]:
    """Return the requirements of ORCA with extras, such as "worker,hub"."""
    return [*PROJECT["dependencies"], *(line for extra in extras.split(",") if extra for line in EXTRAS[extra])]


def resolve(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_pip(lines: list[str], environment: dict[str, str], *options: str) -> str:
    """Return pip's report, as JSON text. `fast-deps` reads metadata out of remote wheels."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    return resolve([*pip, "--use-feature", "fast-deps", *CONSTRAINTS, *options, *lines], environment)


def with_uv(python: str, environment: dict[str, str], *options: str) -> str:
    """Return the resolved versions, one a line."""
    project = str(ROOT / "pyproject.toml")
    platform = ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28"]
    return resolve([*UV, "--python", sys.executable, *platform, *options, project], environment)


@pytest.fixture
def cuda12_index(tmp_path) -> Iterator[str]:
    """Serve a stand-in for PyTorch's index for CUDA 12, whose torch requires packages of CUDA 12 of the registry."""
    packages = ["nvidia-cuda-nvrtc-cu12==12.8.93", "nvidia-nvjitlink-cu12==12.8.93", "cuda-bindings>=12.9.4,<13"]
    make_wheel(tmp_path / "torch", "torch", "2.13.0+cu128", packages)
    with serve_index(tmp_path) as url:
        yield url


@pytest.mark.parametrize("extras", COMBINATIONS)
def test_pip(extras, environment):
    report = with_pip(requirements(extras), environment)
    names = [extra for extra in extras.split(",") if extra in ("worker", "cuda", "cuda12")]
    expected = {"worker": '"name": "torch"', "cuda": '"name": "cupy-cuda13x"', "cuda12": '"name": "cupy-cuda12x"'}
    assert all(expected[name] in report for name in names)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extras", COMBINATIONS)
def test_uv(extras, python, environment):
    chosen = with_uv(python, environment, *(f"--extra={extra}" for extra in extras.split(",") if extra))
    assert ("\ntorch==2.13.0\n" in chosen) is ("worker" in extras)
    assert ("nvidia-cuda-nvrtc==13.0." in chosen) is ("worker" in extras or "dev" in extras)


def test_pip_with_torch_of_an_index_for_cuda_12(environment, cuda12_index):
    lines = [*requirements("worker,hub,cuda12"), "torch==2.13.0+cu128"]
    report = with_pip(lines, environment, "--extra-index-url", cuda12_index)
    assert '"name": "cupy-cuda12x"' in report
    assert '"name": "nvidia-cuda-nvrtc"' not in report


@pytest.mark.parametrize("python", PYTHONS)
def test_uv_with_torch_of_an_index_for_cuda_12(python, environment, cuda12_index):
    extras = ["--extra=worker", "--extra=hub", "--extra=cuda12"]
    chosen = with_uv(python, environment, "--index", cuda12_index, *extras)
    assert "\ntorch==2.13.0+cu128\n" in chosen
    assert "cupy-cuda12x" in chosen


def test_pip_with_the_build_system(environment):
    """hatchling, which builds ORCA in an environment of its own."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert '"name": "hatchling"' in with_pip(build["requires"], environment)
