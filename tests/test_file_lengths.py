"""No source file is longer than a reader keeps in mind; tests and generated files may be."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES = 300
PACKAGES = ("benchmarks", "kernels", "master", "operator", "protos", "tools", "worker")


def test_no_source_file_has_more_than_300_lines():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "_pb2" not in path.name
    }
    assert {package for package in PACKAGES if any(name.startswith(f"{package}/") for name in lengths)} == set(PACKAGES)
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
