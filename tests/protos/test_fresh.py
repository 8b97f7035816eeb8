"""The generated files are what protos/*.proto generate, and every field has a comment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


PROTOS = sorted(path.name for path in (ROOT / "protos").glob("*.proto"))


def test_generated_package_is_fresh(tmp_path):
    """`make protos` would change nothing, and every .proto file is generated."""
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-Iorca_protos={ROOT}/protos"]
    options = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*protoc, *options, *(f"orca_protos/{name}" for name in PROTOS)], check=True)
    with_services = [f"orca_protos/{name}" for name in PROTOS if re.search(r"^service ", _text(name), re.MULTILINE)]
    subprocess.run([*protoc, f"--grpc_python_out={tmp_path}", *with_services], check=True)
    generated = {path.name: path.read_text() for path in (tmp_path / "orca_protos").iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "protos" / "orca_protos").glob("*_pb2*")}
    stale = [name for name in generated.keys() | committed.keys() if generated.get(name) != committed.get(name)]
    assert not stale, "run `make protos`"


@pytest.mark.parametrize("name", PROTOS)
def test_every_field_and_call_has_a_comment(name):
    lines = _text(name).splitlines()
    declared = [number for number, line in enumerate(lines) if re.match(r"\s+(rpc \w+\(|.* = \d+;)", line)]
    assert len(declared) > 60
    for number in declared:
        assert lines[number - 1].strip().startswith("//"), lines[number]


def _text(name: str) -> str:
    return (ROOT / "protos" / name).read_text()
