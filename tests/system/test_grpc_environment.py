"""Master and worker ask for gRPC's threads before they import gRPC, and their commands start without gRPC."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orca_master
import orca_protos
import pytest


@pytest.mark.parametrize("package", ["orca_master", "orca_worker"])
def test_the_package_sets_the_environment(package):
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    program = f"import {package}, os, sys; print('grpc' in sys.modules, os.environ['GRPC_EXPERIMENTS'])"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert ended.stdout == "False -event_engine_client,-event_engine_listener\n"


def test_the_commands_start_without_grpc():
    """`orca operator` does in its image, whose packages are those of the operator alone."""
    paths = [str(Path(package.__path__[0]).parent) for package in (orca_master, orca_protos)]
    ended = subprocess.run(
        [sys.executable, "-S", "-c", "import orca_master.cli"],  # without the packages of the environment
        env={"PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
