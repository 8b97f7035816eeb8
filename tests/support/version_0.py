"""Both sides of the contract as they were before it had versions. Frozen: never adapt this file to the code of today.

tests/contract/version_0 has messages of commit fe5ab6f (topology.json, scheduler.json and state.json, for spec.json)
and the JSON schemas of the models by which its master checked what was sent. The functions are what its operator did.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "contract" / "version_0"


def message(name: str) -> dict[str, Any]:
    """Return a message of version 0: topology, scheduler, state; or the spec that they are for."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema by which a master of version 0 checked a PUT: topology or scheduler."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text())
    return found


def operator_puts(topology: dict[str, Any], knobs: dict[str, Any], report: dict[str, Any]) -> list[str]:
    """Return the paths of the changes that an operator of version 0 sent in each pass while reports stayed the same."""
    puts = []
    if topology != report["topology"]:
        puts.append("/topology")
    if knobs != report["scheduler"]:
        puts.append("/scheduler")
    return puts


def operator_reads(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return what an operator of version 0 took from a report for status and diagnosis; raise KeyError as it did."""
    read = []
    for pipeline in report.get("pipelines", ()):
        entry = (pipeline["id"], pipeline.get("phase", "Pending"), pipeline.get("epoch", 0))
        if failure := pipeline.get("lastFailure"):
            entry += tuple(failure[name] for name in ("at", "reason", "worker", "message", "recoverySeconds"))
        read.append(entry)
    return read
