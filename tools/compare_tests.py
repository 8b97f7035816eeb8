"""Checks that no test is lost: compares the test ids that pytest collects with a stored list.

tests/moves/before.txt.gz is the stored list, one id per line. tests/moves/moves.txt maps changed ids, one rule per
line. `OLD -> NEW`: in every id with the prefix OLD, NEW replaces OLD. `OLD => NEW`: the test NEW replaces all tests
whose ids have the prefix OLD. The rule with the longest matching OLD applies. `#` begins a comment.

Exit code 1 with one line for each lost test, 2 if pytest cannot collect. `--write` updates the stored list.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "moves"
BEFORE = FOLDER / "before.txt.gz"
PROCESSORS_OWN = " compiled as "
"""Part of the ids of tests for CPU targets that this processor lacks (tests/support/cpu_targets.py); not compared."""


def collect() -> set[str]:
    """Return the ids of all tests: those of `make test` and of `make test-long`."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        sys.exit(2)
    return {line.replace(str(ROOT), ".") for line in done.stdout.splitlines() if "::" in line}


def read_moves(text: str) -> list[tuple[str, str, str]]:
    """Return (old, arrow, new) of each line, the longest `old` first; raise ValueError without an arrow."""
    moves = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        arrow = next((arrow for arrow in (" -> ", " => ") if arrow in line), None)
        if arrow is None:
            raise ValueError(f"moves.txt: {line!r} has neither ' -> ' nor ' => '")
        old, new = line.split(arrow)
        moves.append((old.strip(), arrow.strip(), new.strip()))
    return sorted(moves, key=lambda move: -len(move[0]))


def lost(before: Iterable[str], now: set[str], moves: list[tuple[str, str, str]]) -> list[str]:
    """Return the ids of `before` that are neither in `now` nor mapped to a test of `now`."""

    def current_id(name: str) -> str:
        for old, arrow, new in moves:
            if name.startswith(old):
                return new + name[len(old) :] if arrow == "->" else new
        return name

    return [name for name in before if name not in now and current_id(name) not in now and PROCESSORS_OWN not in name]


def main() -> int:
    """Compare or write the list; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update before.txt.gz")
    arguments = parser.parse_args()
    now = collect()
    if arguments.write:
        BEFORE.write_bytes(gzip.compress("\n".join(sorted(now)).encode(), mtime=0))
        return 0
    before = gzip.decompress(BEFORE.read_bytes()).decode().splitlines()
    missing = lost(before, now, read_moves((FOLDER / "moves.txt").read_text(encoding="utf-8")))
    for name in missing:
        print(f"lost: {name}")
    print(f"{len(before)} tests before, {len(now)} now, {len(missing)} lost")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
