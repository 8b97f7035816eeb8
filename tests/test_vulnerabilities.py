"""docs/vulnerabilities.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "vulnerabilities.md").read_text().splitlines()
    if re.match(r"\| (CVE|GHSA)-", line)
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists():
    named = {found.groups() for row in ROWS for found in NAMED.finditer(row[-1])}
    assert named
    for path, name in named:
        assert name in functions(ROOT / path), f"{path}::{name}"


def test_each_row_has_a_test_or_a_reason():
    assert len(ROWS) >= 30
    for row in ROWS:
        assert len(row) == 4, row
        assert row[3].count("tests/") == len(NAMED.findall(row[3])), row
        assert NAMED.search(row[3]) or row[3].startswith("no "), row


def test_every_vulnerability_has_one_row():
    published = [number.strip() for row in ROWS for number in row[0].split(",")]
    assert len(published) == len(set(published))
