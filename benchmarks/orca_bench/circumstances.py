"""The circumstances of a benchmark: date, hardware, versions, command and seed."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("orca-serving", "torch", "transformers", "grpcio", "numpy")


def circumstances(seed: int | None) -> dict[str, Any]:
    """Return date, hardware, versions, command and seed (None for a benchmark without randomness)."""
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "hardware": f"{len(os.sched_getaffinity(0))} cores, {_processor()}",
        "versions": {"python": platform.python_version(), **_versions()},
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": seed,
    }


def line(facts: dict[str, Any]) -> str:
    """Format the result of `circumstances` as one line."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return f"{facts['date']} on {facts['hardware']}; {versions}; {facts['command']}; seed {facts['seed']}"


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _processor() -> str:
    """Return the processor's name from /proc/cpuinfo (proc(5)), else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
