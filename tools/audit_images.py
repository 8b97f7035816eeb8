"""Looks the packages of the images up in a database of known vulnerabilities, with pip-audit.

    python tools/audit_images.py

Exit code 0: every package was looked up and none has a known vulnerability. 1: at least one has. 3: "not reached",
because the database did not answer for some packages, which says nothing about them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "images"
TIMEOUT_SECONDS = 300.0
VULNERABLE, NOT_REACHED = 1, 3


@dataclass(slots=True)
class Findings:
    """The findings of one lock file. `unreached` says why packages were not looked up."""

    vulnerable: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    num_packages: int = 0


def findings(report: dict[str, Any]) -> Findings:
    """Read pip-audit's JSON report."""
    found = Findings()
    for package in report["dependencies"]:
        found.num_packages += 1
        if "skip_reason" in package:
            found.unreached.append(f"{package['name']}: {package['skip_reason']}")
        for vulnerability in package.get("vulns", ()):
            fixed = ", ".join(vulnerability["fix_versions"]) or "none"
            found.vulnerable.append(
                f"{package['name']} {package['version']}: {vulnerability['id']} (fixed in: {fixed})"
            )
    return found


def audit(path: Path) -> Findings:
    """Run pip-audit on a lock file, within a bound."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json"]
    command += ["--progress-spinner", "off", "--requirement", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Findings(unreached=[f"no answer within {TIMEOUT_SECONDS:.0f} s"])
    try:
        return findings(json.loads(done.stdout))
    except ValueError:
        last = done.stderr.strip().splitlines()
        return Findings(unreached=[last[-1] if last else f"pip-audit ended with exit code {done.returncode}"])


def main(paths: Sequence[Path]) -> int:
    """Print the findings of every lock file; return the exit code."""
    code = 0
    for path in paths:
        found = audit(path)
        for line in found.vulnerable:
            print(f"{path.name}: {line}")
        if found.unreached:
            print(f"{path.name}: not reached: {len(found.unreached)} look-ups, the first: {found.unreached[0]}")
        if not found.vulnerable and not found.unreached:
            print(f"{path.name}: {found.num_packages} packages, no known vulnerability")
        if found.vulnerable:
            code = VULNERABLE
        elif found.unreached:
            code = code or NOT_REACHED
    return code


if __name__ == "__main__":
    sys.exit(main(sorted(FOLDER.glob("*.txt"))))
