"""The permission for AMX tiles: Linux grants it on a processor that has them, and is asked only there."""

from __future__ import annotations

import pytest
from orca_kernels.cpu.library import usable_targets
from orca_kernels.cpu.targets import TARGETS, processor_flags
from orca_kernels.cpu.tile_permission import request_tiles

FLAGS = {"sse2"}.union(*(target.needs for target in TARGETS))
"""Of a processor with AMX."""


def test_linux_permits_tiles_where_the_processor_has_them():
    for _ in range(2):
        assert request_tiles() == ("amx_tile" in processor_flags())


def test_a_refused_permission_chooses_the_next_target():
    names = [target.name for target in TARGETS]
    assert [target.name for target in usable_targets(FLAGS, lambda: True)] == names
    assert [target.name for target in usable_targets(FLAGS, lambda: False)] == names[1:]


@pytest.mark.parametrize("lacking", ["amx_tile", "amx_bf16", "avx512_bf16", "amx_int8"])
def test_a_processor_that_lacks_an_instruction_is_not_asked(lacking):
    def request() -> bool:
        raise AssertionError

    assert usable_targets(FLAGS - {lacking}, request)[0].name != "x86-64-v4+amx"
