"""Checks the packages of the images against a database of known vulnerabilities, with pip-audit.

    python tools/audit_images.py

Exit code 0: every package was checked and none has a known vulnerability. 1: at least one has. 3: "not reached", the
database did not answer for some packages, so their state is unknown.
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
    """The findings of one lock file. `unreached`: packages that were not checked, with the reason."""

    vulnerable: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    num_packages: int = 0


def findings(report: dict[str, Any]) -> Findings:
    """Read pip-audit's JSON report."""
    result = Findings()
    for package in report["dependencies"]:
        result.num_packages += 1
        if "skip_reason" in package:
            result.unreached.append(f"{package['name']}: {package['skip_reason']}")
        for vulnerability in package.get("vulns", ()):
            fixed = ", ".join(vulnerability["fix_versions"]) or "none"
            result.vulnerable.append(
                f"{package['name']} {package['version']}: {vulnerability['id']} (fixed in: {fixed})"
            )
    return result


def audit(path: Path) -> Findings:
    """Run pip-audit on a lock file, for at most TIMEOUT_SECONDS."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json"]
    command += ["--progress-spinner", "off", "--requirement", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Findings(unreached=[f"timeout after {TIMEOUT_SECONDS:.0f} s"])
    try:
        return findings(json.loads(done.stdout))
    except ValueError:
        last = done.stderr.strip().splitlines()
        return Findings(unreached=[last[-1] if last else f"pip-audit ended with exit code {done.returncode}"])


def main(paths: Sequence[Path]) -> int:
    """Print the findings of every lock file; return the exit code."""
    code = 0
    for path in paths:
        result = audit(path)
        for line in result.vulnerable:
            print(f"{path.name}: {line}")
        if result.unreached:
            print(f"{path.name}: not reached: {len(result.unreached)} look-ups, the first: {result.unreached[0]}")
        if not result.vulnerable and not result.unreached:
            print(f"{path.name}: {result.num_packages} packages, no known vulnerability")
        if result.vulnerable:
            code = VULNERABLE
        elif result.unreached:
            code = code or NOT_REACHED
    return code


if __name__ == "__main__":
    sys.exit(main(sorted(FOLDER.glob("*.txt"))))
