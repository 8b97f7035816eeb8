"""What can be said of the images without building them; the cluster tests build them and run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import trim_packages
from lock_images import CUDA, entries, requirements

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_dockerfile_begins_with_its_base_and_ends_without_root():
    instructions = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    assert instructions[0] == "ARG BASE=python:3.11-slim"
    for target in ("operator", "master", "worker"):
        stage = DOCKERFILE.split(f"FROM runtime AS {target}\n")[1].split("\nFROM ")[0]
        assert "USER 10001:10001" in stage
        assert "apt-get" not in stage
        assert "RUN" not in stage


@pytest.mark.parametrize("name", requirements())
def test_a_lock_file_has_versions_of_constraints_txt_and_hashes(name):
    """And every package that pyproject.toml asks for. `make resolve` compares the rest with a new resolution."""
    pinned = dict(re.findall(r"^([^#=\n]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    found = entries((ROOT / "images" / f"{name}.txt").read_text())
    assert found
    for package, entry in found.items():
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), package
        version = entry.split()[0].partition("==")[2]
        assert pinned.get(package, version) == version, package
    wanted = {re.split(r"[<>=\[ ]", line)[0].lower() for line in requirements()[name]}
    if name == "cuda":
        wanted = {package for package in wanted if CUDA.match(package)}
    elif name == "worker":
        wanted.remove("torch")
    assert wanted <= set(found)


def test_only_the_workers_image_holds_torch():
    for target in ("operator", "master", "worker"):
        stage = DOCKERFILE.split(f"FROM packages AS {target}-packages\n")[1].split("\nFROM ")[0]
        assert ("torch" in stage) is (target == "worker")
        assert f"--no-deps --require-hashes -r images/{target}.txt" in stage
        assert "torch" not in entries((ROOT / "images" / f"{target}.txt").read_text())


def test_every_image_has_a_list_of_its_packages():
    for target in ("operator", "master", "worker"):
        stage = DOCKERFILE.split(f"FROM packages AS {target}-packages\n")[1].split("\nFROM ")[0]
        assert "--output-file /opt/orca/sbom.cdx.json /opt/orca/bin/python" in stage


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


def pydantic_modules(*imported: str) -> set[str]:
    """Return the modules of pydantic, and of what it needs, that a new interpreter has after these imports."""
    packages = ("annotated_types", "pydantic", "pydantic_core", "typing_inspection")
    program = (
        f"import sys, {', '.join(imported)}; print(*[n for n in sys.modules if n.partition('.')[0] in {packages}])"
    )
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_the_workers_image_has_the_bytecode_of_pydantic():
    """Without it a controller and each of its ranks would compile fifty modules at every start."""
    stage = DOCKERFILE.split("FROM packages AS worker-packages\n")[1].split("\nFROM ")[0]
    listed = [name for name in stage.split("trim_packages.py")[1].split("&&")[0].split() if name.startswith("pydantic")]
    used = pydantic_modules("orca_worker.model_check", "orca_contract.message")
    assert len(used) > 40
    assert used <= pydantic_modules(*listed)
