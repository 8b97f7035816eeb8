"""Mutation tests: applies each fault of tests/mutations/mutations.yaml to a copy of the code and runs the area's tests.

Prints a line per fault. Exit code 1 if the tests of an area pass with a fault, or fail without one; 2 if a fault's text
does not occur exactly once in its file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "mutations" / "mutations.yaml"
PACKAGES = ("master", "worker", "operator", "kernels", "protos", "benchmarks")
SECONDS = 300
"""Timeout of one run of an area's tests: with a fault, tests may hang."""


class TableError(Exception):
    """A fault cannot be applied to the code."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of one file that the tests must detect. `breaks`: the property that the change breaks."""

    file: str
    tests: tuple[str, ...]
    breaks: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Return the file's text with the fault; raise TableError."""
        if text.count(self.old) != 1:
            raise TableError(f"{self.file}: {self.old.strip()!r} occurs {text.count(self.old)} times, not once")
        return text.replace(self.old, self.new)


def read_table(text: str) -> list[Fault]:
    """Return the faults of all areas."""
    return [
        Fault(area["file"], tuple(area["tests"]), fault["breaks"], fault["old"], fault["new"])
        for area in yaml.safe_load(text).values()
        for fault in area["faults"]
    ]


def copy(root: Path, folder: Path) -> None:
    """Copy the files that git tracks."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, folder / name)


def passes(folder: Path, tests: tuple[str, ...]) -> bool:
    """Return True if the tests pass in a copy; a run that times out does not pass."""
    path = os.pathsep.join(str(folder / package) for package in PACKAGES)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    command += ["--hypothesis-profile", "long", *tests]
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, timeout=SECONDS, check=False, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1):  # 1: tests have failed; other codes are errors of the run
        raise TableError(done.stdout[-2000:] + done.stderr[-2000:])
    return done.returncode == 0


def missed(folder: Path, faults: list[Fault]) -> list[str]:
    """Print all verdicts; return the wrong ones: an undetected fault, or tests that fail without a fault."""
    wrong = [
        f"without a fault: {', '.join(tests)}"
        for tests in sorted({f.tests for f in faults})
        if not passes(folder, tests)
    ]
    for fault in faults:
        path = folder / fault.file
        original = path.read_text(encoding="utf-8")
        path.write_text(fault.applied(original), encoding="utf-8")
        survived = passes(folder, fault.tests)
        path.write_text(original, encoding="utf-8")
        print(f"{'MISSED' if survived else 'caught'}  {fault.file}: {fault.breaks}", flush=True)
        if survived:
            wrong.append(fault.breaks)
    return wrong


def main() -> int:
    """Apply all faults of the table and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout with the hypothesis profile long")
    parser.add_argument("--table", type=Path, default=TABLE, help="table of faults for that checkout")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy(arguments.root, folder)
        try:
            faults = read_table(arguments.table.read_text(encoding="utf-8"))
            for fault in faults:
                fault.applied((folder / fault.file).read_text(encoding="utf-8"))
            wrong = missed(folder, faults)
        except TableError as error:
            print(error, file=sys.stderr)
            return 2
    for line in wrong:
        print(f"wrong verdict: {line}")
    print(f"{len(faults)} faults, {len(wrong)} wrong verdicts")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
