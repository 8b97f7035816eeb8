"""The generated package is what engine.proto generates, and every field says what it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_package_is_fresh(tmp_path):
    """`make protos` would change nothing."""
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-Iorca_protos={ROOT}/protos", f"--python_out={tmp_path}",
         f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}", "orca_protos/engine.proto"],
        check=True,
    )  # fmt: skip
    for generated in sorted((tmp_path / "orca_protos").iterdir()):
        committed = ROOT / "protos" / "orca_protos" / generated.name
        assert committed.read_text() == generated.read_text(), f"{generated.name} is stale: run `make protos`"


def test_every_field_and_call_has_a_comment():
    lines = (ROOT / "protos" / "engine.proto").read_text().splitlines()
    declaration = re.compile(r"^\s+(rpc \w+\(|(repeated |map<)?[\w., <>]+ \w+ = \d+;)")
    declared = [number for number, line in enumerate(lines) if declaration.match(line)]
    assert len(declared) > 60
    for number in declared:
        assert lines[number - 1].strip().startswith("//"), lines[number]
