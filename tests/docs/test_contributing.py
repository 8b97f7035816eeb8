"""The how-tos of CONTRIBUTING.md name files that exist, and names that the code defines."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("master", "worker", "operator", "protos", "kernels", "tests")
FILES = [
    path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".proto")
]  # fmt: skip
OTHERS = {"transformers"}
"""Names of other projects."""


def how_tos() -> str:
    """Return the sections "How to add …"."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    sections = [section for section in page.split("\n## ") if section.startswith("How to add")]
    assert len(sections) >= 4
    return "\n".join(sections)


def quoted() -> set[str]:
    """Return the words in backticks."""
    return set(re.findall(r"`([^`\n]+)`", how_tos()))


def test_files_of_the_how_tos_exist():
    """A path may begin below the folder of its package."""
    paths = {word for word in quoted() if word.endswith((".py", ".proto")) and "NAME" not in word}
    assert len(paths) >= 20
    existing = [f"/{path.relative_to(ROOT)}" for path in FILES]
    assert {path for path in paths if not any(file.endswith(f"/{path}") for file in existing)} == set()


def test_names_of_the_how_tos_are_defined():
    """By a class, a function, an assignment, a field, a key of a dictionary, or as a package."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in FILES)
    defined = set(re.findall(r"^\s*(?:(?:async )?(?:def|class)|message) (\w+)", code, re.MULTILINE))
    defined |= set(re.findall(r"^\s*([A-Za-z_]\w*)(?:: [^=\n]+)?(?: = .*)?$", code, re.MULTILINE))
    defined |= set(re.findall(r'^\s*"(\w+)":', code, re.MULTILINE))
    defined |= {path.parent.name for path in FILES if path.name == "__init__.py"} | OTHERS
    names = {word for word in quoted() if re.fullmatch(r"[A-Za-z_]\w+", word)}
    assert len(names) >= 25
    assert names - defined == set()


def test_fields_are_added_to_the_class_of_the_file_before_it():
    """Such as "`scheduling/sampling_parameters.py`: the field of `SamplingParameters`"."""
    pairs = re.findall(r"`([\w/.]+\.py)`:\s+the\s+field\s+of\s+`(\w+)`", how_tos())
    assert len(pairs) >= 3
    for path, name in pairs:
        (file,) = [file for file in FILES if f"/{file.relative_to(ROOT)}".endswith(f"/{path}")]
        assert f"\nclass {name}" in file.read_text(encoding="utf-8"), path
