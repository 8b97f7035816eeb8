"""Imports without garbage collections: what exists afterwards is left out of later ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """import gc
from orca_protos.uncollected import uncollected
before = gc.get_freeze_count()
try:
    with uncollected():
        made = [[] for _ in range(2000)]
        inside = gc.isenabled()
        {then}
except ImportError:
    pass
print(inside, gc.isenabled(), gc.get_freeze_count() - before > 2000)"""


@pytest.mark.parametrize("then", ["pass", "import no_such_module"], ids=["imported", "failed"])
def test_collections_are_suspended_within_the_block_only(then):
    command = [sys.executable, "-c", PROGRAM.format(then=then)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False True True\n"
