"""Every file and function that docs/concepts/sequences.md names exists; its steps are numbered without gaps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "sequences.md").read_text(encoding="utf-8")
NAMED = re.findall(r"^ +- `([\w/]+\.py)`: (.+)$", PAGE, re.MULTILINE)
SECTIONS = PAGE.split("\n## ")[1:]


def definitions(node: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yield the names of classes and functions, those of a class as CLASS.NAME."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from definitions(child, f"{child.name}.")


@pytest.mark.parametrize(("path", "names"), sorted(set(NAMED)), ids=str)
def test_named_functions_exist(path, names):
    file = ROOT / path
    assert file.is_file()
    named = re.findall(r"`([\w.]+)`", names)
    assert named
    missing = set(named) - set(definitions(ast.parse(file.read_text(encoding="utf-8"))))
    assert not missing


def test_other_names_in_the_text_exist():
    """Names in sentences, outside of the lists: a file as a path, a method as CLASS.METHOD."""
    known = {name for path, _ in NAMED for name in definitions(ast.parse((ROOT / path).read_text(encoding="utf-8")))}
    for path in re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path
    for method in re.findall(r"`([A-Z]\w+\.\w+)`", PAGE):
        assert method in known, method


@pytest.mark.parametrize("section", SECTIONS, ids=["request", "edit"])
def test_every_step_names_a_file(section):
    steps = re.split(r"^(\d+)\. \*\*", section, flags=re.MULTILINE)[1:]
    assert [int(number) for number in steps[::2]] == list(range(1, len(steps) // 2 + 1))
    assert len(steps) >= 20
    for text in steps[1::2]:
        assert re.search(r"^ +- `[\w/]+\.py`: ", text, re.MULTILINE), text
