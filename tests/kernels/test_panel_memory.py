"""Memory of panels: parts of a piece do not overlap, and a piece is freed with the last of them."""

from __future__ import annotations

import gc
import weakref

import torch
from orca_kernels.cpu.panel_memory import LINE, PIECE, PanelMemory


def test_parts_lie_behind_each_other_at_cache_lines_and_do_not_overlap():
    memory = PanelMemory()
    parts = [
        memory.empty(count, dtype) for count, dtype in ((33, torch.bfloat16), (5, torch.int8), (16, torch.float32))
    ]
    begins = [part.data_ptr() for part in parts]
    assert [begin - begins[0] for begin in begins] == [0, 2 * LINE, 3 * LINE]
    for number, part in enumerate(parts):
        part.fill_(number)
    assert [(part == number).all() for number, part in enumerate(parts)] == [True] * 3
    assert [(len(part), part.dtype) for part in parts] == [(33, torch.bfloat16), (5, torch.int8), (16, torch.float32)]


def test_what_does_not_fit_begins_a_piece_and_what_is_larger_has_its_own():
    memory = PanelMemory()
    first, second, third = (memory.empty(PIECE // 4 * 3, torch.int8) for _ in range(3))
    larger = memory.empty(PIECE + 1, torch.int8)
    after = memory.empty(LINE, torch.int8)
    storages = {part.untyped_storage().data_ptr() for part in (first, second, third, larger)}
    assert len(storages) == 4
    assert len(larger.untyped_storage()) == PIECE + 1
    assert after.untyped_storage().data_ptr() == third.untyped_storage().data_ptr()


def test_an_unused_piece_is_freed():
    memory = PanelMemory()
    part = memory.empty(PIECE, torch.int8)
    piece = weakref.ref(part.untyped_storage())
    memory.empty(PIECE, torch.int8)
    del part
    gc.collect()
    assert piece() is None
