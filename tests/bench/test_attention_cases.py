"""Batches and libraries of the benchmarks of attention."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from orca_kernels.interface import AttentionBackendError, AttentionForm
from support.peer_programs import BENCHMARKS, peer_program

FORM = AttentionForm(64, 0.125)


@pytest.fixture
def cases() -> Iterator[ModuleType]:
    with peer_program("attention_cases", BENCHMARKS) as module:
        yield module


def test_a_batch_has_blocks_of_its_own(cases):
    batch, num_blocks = cases.ragged([(37, 21), (90, 1), (0, 16)], torch.device("cpu"))
    assert num_blocks == 4 + 6 + 1
    assert batch.query_start.tolist() == [0, 21, 22, 38]
    assert batch.context_length.tolist() == [37, 90, 0]
    blocks = [*batch.block_table[0, :4].tolist(), *batch.block_table[1].tolist(), int(batch.block_table[2, 0])]
    assert sorted(blocks) == list(range(num_blocks))


def test_a_cpu_has_no_libraries(cases, capsys):
    assert cases.library_attentions(FORM, (4, 2), torch.bfloat16, torch.device("cpu")) == {}
    assert capsys.readouterr().out == ""


def test_a_library_that_cannot_be_had_is_named(cases, monkeypatch, capsys):
    def attention(*_) -> None:
        raise AttentionBackendError("not installed")

    monkeypatch.setattr(cases.CheckedLibrary, "attention", attention)
    assert cases.library_attentions(FORM, (4, 2), torch.bfloat16, torch.device("cuda")) == {}
    assert capsys.readouterr().out.splitlines() == [
        f"attention by {name}'s library: not installed" for name in ("torch", "flashinfer")
    ]
