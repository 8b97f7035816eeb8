"""tools/compare_tests.py: a test is kept, moved, or lost."""

from __future__ import annotations

import pytest
from compare_tests import lost, read_moves

MOVES = """
# a file that was renamed, and several tests that became one
tests/a.py:: -> tests/b.py::
tests/a.py::test_old -> tests/c.py::test_new
tests/many.py::test_case[ => tests/many.py::test_all_cases
"""


def test_a_test_is_kept_moved_or_lost():
    before = [
        "tests/a.py::test_x[1]",
        "tests/a.py::test_old[2]",
        "tests/many.py::test_case[p]",
        "tests/d.py::test_kept",
    ]
    now = {"tests/b.py::test_x[1]", "tests/c.py::test_new[2]", "tests/many.py::test_all_cases", "tests/d.py::test_kept"}
    moves = read_moves(MOVES)
    assert lost(before, now, moves) == []
    for place, name in zip(sorted(now), [before[0], before[1], before[3], before[2]], strict=True):
        assert lost(before, now - {place}, moves) == [name]


def test_targets_that_depend_on_the_processor_are_not_compared():
    assert lost(["tests/k.py::test_sum[x86-64-v4 compiled as x86-64-v3]"], set(), []) == []


def test_a_line_without_an_arrow_is_refused():
    with pytest.raises(ValueError, match="neither"):
        read_moves("tests/a.py::test_x")
