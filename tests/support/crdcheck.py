"""`crdcheck`: validates the CRD and OrcaDeployments by the API server's own code (apiextensions 0.36).

The program is outside the repository. Without it, tests that need it are skipped, or fail if REQUIRE_CRDCHECK is set,
as in .ci/run.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from orca_operator.names import API_VERSION, KIND

from support.orcadeployments import ROOT

PROGRAM = ROOT.parent / "shared" / "tools" / "crdcheck" / "crdcheck"
REQUIRE = "REQUIRE_CRDCHECK"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The server's validation of a document; `defaulted` is the resource as the server would store it."""

    accepted: bool
    errors: list[str]
    defaulted: dict[str, Any]


def judge(
    crd: dict[str, Any], resources: Sequence[dict[str, Any]] = (), old: dict[str, Any] | None = None
) -> list[Verdict]:
    """Return the verdict on the CRD, then one per resource; with `old`, resources are updates of `old`.

    Without the program, skip the test, or fail it if REQUIRE_CRDCHECK is set.
    """
    if not PROGRAM.exists():
        missing = "../shared/tools/crdcheck is absent: the API server's verdict cannot be compared"
        if os.environ.get(REQUIRE):
            pytest.fail(missing)
        pytest.skip(missing)
    with tempfile.TemporaryDirectory() as folder:
        # JSON is valid YAML, and crdcheck reads several documents per file.
        documents = [_write(folder, "crd", [crd]), *([_write(folder, "resources", resources)] if resources else [])]
        options = ["-json"] if old is None else ["-json", "-old", _write(folder, "old", [old])]
        done = subprocess.run(
            [str(PROGRAM), *options, *documents], capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode in (0, 1), done.stderr
    verdicts = [
        Verdict(line["accepted"], line["errors"] or [], line.get("defaulted") or {})
        for line in map(json.loads, done.stdout.splitlines())
    ]
    assert len(verdicts) == 1 + len(resources), done.stdout
    return verdicts


def resource(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return an OrcaDeployment manifest."""
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _write(folder: str, name: str, documents: Sequence[dict[str, Any]]) -> str:
    path = Path(folder) / f"{name}.yaml"
    path.write_text("\n---\n".join(json.dumps(document) for document in documents) + "\n")
    return str(path)
