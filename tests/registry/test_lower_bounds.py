"""The lower bounds of pyproject.toml suffice: the tests of protos/ pass, and each module without torch is imported."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.version import Version
from support.package_index import make_wheel

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

OF_THE_PACKAGE = ("protobuf", "grpcio", "uvicorn", "httptools", "pydantic", "tqdm")
"""What orca_contract and orca_protos import."""
OF_ITS_TESTS = ("grpcio-tools", "cryptography")
TESTS = ("tests/protos", "tests/contract/test_message.py", "tests/contract/test_rank_environment.py")

EXTRAS = ("hub", "operator", "s3", "traces")
"""The extras that do not need torch."""
IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""


def lowest(name: str) -> str:
    """Return the requirement that allows only the lower bound of a dependency, such as "grpcio==1.85.1"."""
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    (bound,) = [line for line in lines if re.match(rf"{re.escape(name)}\b(?!-)", line)]
    return bound.replace(">=", "==")


def test_protos_at_the_lower_bounds(tmp_path, environment):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    bounds = [lowest(name) for name in (*OF_THE_PACKAGE, *OF_ITS_TESTS)]
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--only-binary", ":all:"]
    subprocess.run([*pip, *bounds, "pytest", "pytest-timeout"], env=environment, check=True)
    # tests/conftest.py needs torch and transformers, these tests do not.
    bounded = ["--timeout", "60", "--maxfail", "3"]  # ends, and names the tests, before this test's own timeout
    tests = [python, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", *bounded, *TESTS]
    done = subprocess.run(
        tests,
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT / "protos")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    frozen = subprocess.run([*pip[:5], "freeze"], env=environment, capture_output=True, text=True, check=True).stdout
    installed = dict(line.split("==") for line in frozen.split())
    for name, version in (bound.split("==") for bound in bounds):
        assert Version(installed[name]) == Version(version), name


def test_modules_at_the_lower_bounds(tmp_path, environment):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = str(venv / "bin" / "python")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, "--only-binary", ":all:"]
    extras = [f"--extra={extra}" for extra in EXTRAS]
    # The operator reads the version of ORCA, which the wheel has.
    wheel = make_wheel(tmp_path, "orca-serving", PROJECT["version"])
    subprocess.run([*uv, "--no-deps", wheel], env=environment, check=True)
    project = ["--resolution", "lowest-direct", *extras, "--requirements", ROOT / "pyproject.toml"]
    subprocess.run([*uv, *project], env=environment, check=True)
    packages = {"master": "orca_master", "operator": "orca_operator", "protos": "orca_protos"}
    done = subprocess.run(
        [python, "-c", IMPORT_ALL, *packages.values(), "orca_contract"],
        env=environment | {"PYTHONPATH": ":".join(str(ROOT / folder) for folder in packages)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert {"orca_master.bodies.messages_blocks", "orca_operator.names"} <= set(done.stdout.split())
