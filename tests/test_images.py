"""What can be said of the images without building them; the cluster tests build them and run them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import trim_packages

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_dockerfile_begins_with_its_base_and_ends_without_root():
    instructions = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    assert instructions[0] == "ARG BASE=python:3.11-slim"
    for target in ("operator", "master", "worker"):
        stage = DOCKERFILE.split(f"FROM runtime AS {target}\n")[1].split("\nFROM ")[0]
        assert "USER 10001:10001" in stage
        assert "apt-get" not in stage
        assert "RUN" not in stage


def test_only_the_workers_image_holds_torch():
    for target, torch in (("operator", False), ("master", False), ("worker", True)):
        stage = DOCKERFILE.split(f"FROM build AS {target}-packages\n")[1].split("\nFROM ")[0]
        (names,) = re.findall(r"requires (.+?) (?:\$extra )?>", stage)
        extras = {"base": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
        requirements = [line for name in names.split() for line in extras[name]]
        assert any(line.startswith("torch") for line in requirements) is torch


def test_trimming_leaves_what_is_imported(tmp_path):
    removed = [
        "kubernetes/aio/client/api.py", "torch/bin/protoc-3.13.0.0", "torch/bin/test_api", "torch/include/ATen/ATen.h",
        "torch/bin/test_interpreter_async.pt", "torch/__pycache__/hub.cpython-311.pyc", "torch/test/test.txt",
        "sympy/core/tests/__init__.py", "sympy/core/tests/deeper/tests/__init__.py",
    ]  # fmt: skip
    kept = ["kubernetes/client/api.py", "torch/bin/torch_shm_manager", "torch/testing/__init__.py", "own/tests.py"]
    for name in removed + kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    trim_packages.trim(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)
