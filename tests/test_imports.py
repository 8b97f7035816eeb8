"""Dependencies point one way, and the processes that must be light are (docs/architecture.md, section 2)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "protos/orca_contract": set(),
    "protos/orca_protos": set(),
    "kernels/orca_kernels": {"orca_contract"},
    "master/orca": {"orca_master"},
    "master/orca_master": {"orca_contract", "orca_protos"},
    "worker/orca_worker": {"orca_contract", "orca_protos", "orca_kernels"},
    "operator/orca_operator": {"orca_contract", "orca_protos"},
    "benchmarks/orca_bench": {"orca_contract", "orca_master", "orca_protos"},
}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_downward(package):
    own = Path(package).name
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                top = name.split(".")[0]
                assert not top.startswith("orca_") or top == own or top in MAY_IMPORT[package], f"{path}: {name}"


def test_child_interpreters_do_not_import_from_the_current_folder():
    """The current folder may be a model's, whose resource.py or torch.py would run in place of the library's."""
    commands = [
        (path, match[0])
        for package in MAY_IMPORT
        for path in (ROOT / package).rglob("*.py")
        for match in re.finditer(r"sys\.executable,\s*\S+", path.read_text())
    ]
    assert len(commands) >= 6
    assert [command for command in commands if '"-P"' not in command[1]] == []


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (["orca_master.serve", "orca_master.server", "orca_master.cli"], ["torch", "numpy", "transformers"]),
        (["orca_worker.cli", "orca_worker.controller", "orca_worker.fetch"], ["torch", "transformers", "fastapi"]),
        (["orca_operator.cli"], ["torch", "fastapi", "grpc", "google.protobuf"]),
        (
            ["orca_contract.state", "orca_contract.topology"],
            ["torch", "fastapi", "grpc", "google.protobuf", "orca_protos"],
        ),
    ],
)
def test_light_processes_stay_light(modules, absent):
    """No torch in the master or in a controller."""
    script = f"import sys, {', '.join(modules)}; print([name for name in {absent} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
