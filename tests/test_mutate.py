"""tools/mutate.py: the table of faults fits the code; `make mutations` runs the tests with each fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutate import TABLE, Fault, TableError, read_table

ROOT = Path(__file__).parents[1]
FAULTS = read_table(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.breaks for fault in FAULTS])
def test_each_fault_fits_its_file(fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert fault.applied(text) != text
    assert all((ROOT / test).exists() for test in fault.tests)


def test_no_fault_is_there_twice():
    assert len({fault.breaks for fault in FAULTS}) == len(FAULTS) >= 20


@pytest.mark.parametrize("text", ["", "a a"])
def test_a_fault_that_fits_nowhere_or_twice_is_named(text):
    with pytest.raises(TableError, match=r"f.py: 'a' occurs [02] times"):
        Fault("f.py", (), "", "a", "b").applied(text)
