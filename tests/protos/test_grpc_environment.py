"""The threads of gRPC: what master and worker ask for is known to the pinned version, and users can ask otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import orca_master
import orca_protos
import pytest
from orca_protos.grpc_environment import VERSION

READ = "import {package}, grpc.aio, os, asyncio; {package}; print(os.environ['GRPC_EXPERIMENTS']); {use}"
USE = "asyncio.run(grpc.aio.insecure_channel('unix:/none').close())"


def experiments(package: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Import a package and use gRPC in a new interpreter, whose environment has no experiments but those given."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    program = READ.format(package=package, use=USE)
    return subprocess.run(
        [sys.executable, "-c", program], env={**others, **environment}, capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize("package", ["orca_master", "orca_worker"])
def test_grpc_knows_the_experiments(package):
    """gRPC logs an error for a name that it does not know."""
    assert version("grpcio").startswith(f"{VERSION}."), "compare the names with those of the new version"
    ended = experiments(package)
    assert ended.stdout == "-event_engine_client,-event_engine_listener\n"
    assert ended.stderr == ""


def test_grpc_reports_unknown_experiments():
    """What the test above relies on."""
    assert "Unknown experiment: none" in experiments("orca_worker", GRPC_EXPERIMENTS="none").stderr


def test_the_environment_takes_precedence():
    assert experiments("orca_master", GRPC_EXPERIMENTS="event_engine_client").stdout == "event_engine_client\n"


def test_the_commands_start_without_grpc():
    """`orca operator` does in its image, whose packages are those of the operator alone."""
    paths = [str(Path(package.__path__[0]).parent) for package in (orca_master, orca_protos)]
    ended = subprocess.run(
        [sys.executable, "-S", "-c", "import orca_master.cli"],  # without the packages of the environment
        env={"PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
