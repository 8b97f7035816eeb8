"""Batches and libraries of the benchmarks of attention."""

from __future__ import annotations

import torch
from orca_bench import attention_cases
from orca_bench.attention_cases import library_attentions, ragged
from orca_kernels.interface import AttentionBackendError, AttentionForm

FORM = AttentionForm(64, 0.125)


def test_a_batch_has_blocks_of_its_own():
    batch, num_blocks = ragged([(37, 21), (90, 1), (0, 16)], torch.device("cpu"))
    assert num_blocks == 4 + 6 + 1
    assert batch.query_start.tolist() == [0, 21, 22, 38]
    assert batch.context_length.tolist() == [37, 90, 0]
    blocks = [*batch.block_table[0, :4].tolist(), *batch.block_table[1].tolist(), int(batch.block_table[2, 0])]
    assert sorted(blocks) == list(range(num_blocks))


def test_a_cpu_has_no_libraries(capsys):
    assert library_attentions(FORM, (4, 2), torch.bfloat16, torch.device("cpu")) == {}
    assert capsys.readouterr().out == ""


def test_a_library_that_cannot_be_had_is_named(monkeypatch, capsys):
    def attention(*_) -> None:
        raise AttentionBackendError("not installed")

    monkeypatch.setattr(attention_cases.CheckedLibrary, "attention", attention)
    assert library_attentions(FORM, (4, 2), torch.bfloat16, torch.device("cuda")) == {}
    assert capsys.readouterr().out.splitlines() == [
        f"attention by {name}'s library: not installed" for name in ("torch", "flashinfer")
    ]
