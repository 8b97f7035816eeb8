"""The threads of gRPC: what the module asks for is known to the pinned version, and users can ask otherwise.

tests/registry runs these tests with the lower bounds of the dependencies, without master and worker.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

from orca_protos.grpc_environment import VERSION

PROGRAM = """
import orca_protos.grpc_environment, grpc.aio, os, asyncio
print(os.environ["GRPC_EXPERIMENTS"])
asyncio.run(grpc.aio.insecure_channel("unix:/none").close())
"""


def experiments(**environment: str) -> subprocess.CompletedProcess[str]:
    """Use gRPC in a new interpreter, whose environment has no experiments but those given."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**others, **environment}, capture_output=True, text=True, check=True
    )


def test_grpc_knows_the_experiments():
    """gRPC logs an error for a name that it does not know."""
    assert version("grpcio").startswith(f"{VERSION}."), "compare the names with those of the new version"
    ended = experiments()
    assert ended.stdout == "-event_engine_client,-event_engine_listener\n"
    assert ended.stderr == ""


def test_grpc_reports_unknown_experiments():
    """What the test above relies on."""
    assert "Unknown experiment: none" in experiments(GRPC_EXPERIMENTS="none").stderr


def test_the_environment_takes_precedence():
    assert experiments(GRPC_EXPERIMENTS="event_engine_client").stdout == "event_engine_client\n"
