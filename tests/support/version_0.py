"""Both sides of the contract before it had versions. Frozen: never adapt this file to present code.

tests/contract/version_0 has messages of commit fe5ab6f (topology.json, scheduler.json and state.json, for spec.json)
and the JSON schemas by which its master validated messages. The functions do the same as its operator.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "contract" / "version_0"


def message(name: str) -> dict[str, Any]:
    """Return a message of version 0 (topology, scheduler or state), or their spec."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema by which a master of version 0 validated a PUT (topology or scheduler)."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text())
    return content


def operator_puts(topology: dict[str, Any], knobs: dict[str, Any], report: dict[str, Any]) -> list[str]:
    """Return the paths of the PUTs of an operator of version 0, in each pass until the report changes."""
    puts = []
    if topology != report["topology"]:
        puts.append("/topology")
    if knobs != report["scheduler"]:
        puts.append("/scheduler")
    return puts


def operator_reads(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the fields that an operator of version 0 read for status and diagnosis; raise KeyError like it."""
    read = []
    for pipeline in report.get("pipelines", ()):
        entry = (pipeline["id"], pipeline.get("phase", "Pending"), pipeline.get("epoch", 0))
        if failure := pipeline.get("lastFailure"):
            entry += tuple(failure[name] for name in ("at", "reason", "worker", "message", "recoverySeconds"))
        read.append(entry)
    return read
