"""The README's table names every option that `orca serve` has, and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_readme_and_help_agree():
    table = README.read_text().partition("## Options")[2].partition("## The endpoint")[0]
    documented = {option for line in table.splitlines() if line.startswith("| `--") for option in options(line)}
    command = [sys.executable, "-m", "orca_master.cli", "serve", "--help"]
    offered = set(options(subprocess.run(command, capture_output=True, text=True, check=True).stdout)) - {"--help"}
    assert documented == offered


def options(text: str) -> list[str]:
    return re.findall(r"--[a-z][a-z-]+[a-z]", text.partition("| meaning")[0])
