"""Dependencies point one way, and the processes that must be light are (docs/architecture.md, section 2)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
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


ROOMS = {
    "errors": set(),
    "garbage": set(),
    "heartbeat": set(),
    "threads": {"errors"},
    "scheduling": {"errors"},
    "journal": {"errors", "threads"},
    "bodies": {"errors", "scheduling", "threads"},
    "text": {"errors", "scheduling", "bodies", "threads"},
    "engine": {"errors", "scheduling", "text", "threads"},
    "metrics": {"errors", "scheduling", "engine", "journal"},
    "batches": {"errors", "journal", "threads"},
    "endpoint": {"errors", "scheduling", "bodies", "text", "engine", "journal", "batches"},
    "api_processes": {"errors", "garbage", "heartbeat", "scheduling", "text", "threads", "engine", "endpoint"},
    "commands": {
        *("errors", "garbage", "heartbeat", "text", "engine", "metrics", "journal", "batches", "endpoint"),
        "api_processes",
    },
    "llm_messages": {"errors", "bodies", "endpoint"},
    "llm_options": {"errors", "bodies", "engine", "commands", "text"},
    "llm_prompts": {"errors", "bodies", "endpoint", "llm_messages"},
    "llm_progress": set(),
    "loop_thread": set(),
    "llm": {
        *("errors", "bodies", "text", "engine", "metrics", "endpoint", "commands"),
        *("llm_messages", "llm_options", "llm_prompts", "llm_progress", "loop_thread"),
    },
    "cli": {"errors"},
}
"""What the parts of orca_master may import of each other."""


def test_parts_of_the_master_import_one_way():
    folder = ROOT / "master/orca_master"
    parts = [path for path in folder.iterdir() if path.name not in ("__init__.py", "__pycache__")]
    assert {path.stem for path in parts} == set(ROOMS)
    assert sum(path.is_dir() for path in parts) <= 10
    assert list(TopologicalSorter(ROOMS).static_order()), "a cycle raises CycleError"
    for part in parts:
        for path in [part] if part.is_file() else part.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("orca_master"):
                    continue
                imported = (node.module or "").split(".")[1]
                assert imported == part.stem or imported in ROOMS[part.stem], f"{path}: {node.module}"


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
        (
            [
                "orca_master.commands.serve",
                "orca_master.commands.master",
                "orca_master.commands.server",
                "orca_master.cli",
            ],
            ["torch", "numpy", "transformers", "opentelemetry.sdk"],
        ),
        (["orca_worker.serving", "orca_worker.controller", "orca_worker.fetch"], ["torch", "transformers", "fastapi"]),
        (["orca_operator.cli"], ["torch", "fastapi", "grpc", "google.protobuf"]),
        (
            ["orca_contract.state", "orca_contract.topology"],
            ["torch", "fastapi", "grpc", "google.protobuf", "orca_protos"],
        ),
        (  # what `orca serve` waits for before its ranks begin to import torch
            ["orca_master.commands.serve", "orca_worker.cli"],
            ["uvicorn", "fastapi", "pydantic", "yaml", "orca_contract.message", "orca_worker.model_check"],
        ),
        (["orca_worker.cli"], ["asyncio", "grpc", "google.protobuf"]),  # what a worker imports before its ranks start
    ],
)
def test_light_processes_stay_light(modules, absent):
    """No torch in the master or in a controller."""
    script = f"import sys, {', '.join(modules)}; print([name for name in {absent} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# -- a test file for every module --------------------------------------------------------------------------------------

TESTS_OF = {
    "operator/orca_operator": "operator",
    "protos/orca_contract": "contract",
    "protos/orca_protos": "protos",
}
WITHOUT_TEST_FILE = {
    "engine_pb2": "generated; test_fresh.py and test_generated.py",
    "engine_pb2_grpc": "generated",
    "engine_link_pb2": "generated",
}


@pytest.mark.parametrize("package", TESTS_OF)
def test_every_module_has_its_test_file(package):
    """Modules of a folder below have one test file together, by the folder's name: manifests/ has test_manifests.py."""
    folder = ROOT / package
    names = {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}
    wanted = names - {"__init__", *WITHOUT_TEST_FILE}
    present = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / TESTS_OF[package]).glob("test_*.py")}
    assert sorted(wanted - present) == []
    assert len(wanted) >= 8


def test_every_exception_is_a_module():
    modules = {path.stem for package in TESTS_OF for path in (ROOT / package).rglob("*.py")}
    assert set(WITHOUT_TEST_FILE) <= modules
