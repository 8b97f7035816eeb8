"""What can be said of the images without building them; the cluster tests build them and run them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_cuda_needs_can_be_resolved():
    """TORCH=cuda was never built (no CUDA wheels where this is developed): its requirements agree with each other."""
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["hub"], *extras["worker"], *extras["cuda"]]
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    done = subprocess.run(
        [*pip, "--constraint", str(ROOT / "constraints.txt"), "--only-binary", ":all:", *wanted],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r'"name": "cupy-cuda', done.stdout)


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
