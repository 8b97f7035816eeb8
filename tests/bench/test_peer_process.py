"""The process of a peer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.peer_programs import peer_program

ENGINE = """
import os, json
print("ready", flush=True)
input()
print(json.dumps({"seconds": 0.0 if "PYTHONPATH" in os.environ else 1.0}), flush=True)
"""


@pytest.fixture
def process(monkeypatch, tmp_path):
    with peer_program("process") as module:
        (tmp_path / "engine.py").write_text(ENGINE)
        monkeypatch.setattr(module, "FOLDER", tmp_path)
        yield module


def test_a_peer_has_the_packages_of_its_own_environment(process, monkeypatch):
    """An earlier revision of ORCA would be the present one."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    core = min(os.sched_getaffinity(0))
    peer = process.Peer("engine", "engine", Path(sys.executable), Path("job.json"), {core})
    try:
        assert peer.run() == 1.0
    finally:
        peer.close()
