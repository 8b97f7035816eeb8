"""Sums of activations: every named row once, in slices of any size, and beside requests that sample."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch
from orca_protos import engine_pb2 as pb
from orca_worker import pooling
from orca_worker.device_copies import HostCopies
from orca_worker.pooling import start_pooling
from orca_worker.rows import RowTable

CPU = torch.device("cpu")


@pytest.mark.parametrize("elements", [1, 7, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_change_no_sum(monkeypatch, elements, dtype):
    monkeypatch.setattr(pooling, "SLICE_ELEMENTS", elements)
    iteration = pb.Iteration(pooled=[pb.PooledTokens(index=1), pb.PooledTokens(index=3, first=2)])
    hidden = torch.randint(-8, 8, (9, 3)).to(dtype)
    seen = []

    def norm(rows: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return rows * 2

    result = pb.IterationResult()
    start_pooling(norm, hidden, [slice(0, 4), slice(6, 9)], iteration, HostCopies(CPU))(result)
    assert sum(seen) == 7
    assert max(seen) <= max(1, elements // 3)
    assert [entry.index for entry in result.pooled] == [1, 3]
    for entry, rows in zip(result.pooled, (hidden[0:4], hidden[6:9]), strict=True):
        assert list(array("f", entry.sum)) == (2 * rows.float()).sum(dim=0).tolist()


def test_the_head_reads_the_rows_of_embeddings_of_prompts_and_of_those_that_sample():
    """An embedding of all tokens, an answer, a prompt with log probabilities, an embedding of the last token."""
    counts, samples = [3, 1, 4, 5], [False, True, True, False]
    iteration = pb.Iteration(
        row=range(4), num_tokens=counts, context_length=[0, 7, 0, 16], token=range(13), num_new_blocks=[1, 1, 1, 2],
        new_block=range(5), sample=samples,
        prompt=[pb.PromptPositions(index=2, first=1, token=[8, 9])],
        pooled=[pb.PooledTokens(index=0), pb.PooledTokens(index=3, first=4)],
    )  # fmt: skip
    batch = RowTable(64, CPU).batch(iteration)
    assert batch.last is not None
    assert batch.prompt is not None
    read = batch.last.tokens.numpy()
    assert read.tolist() == [0, 1, 2, 3, 5, 6, 7, 12]
    assert read[batch.prompt.sampling.numpy()].tolist() == [3, 7]
    assert read[batch.prompt.scored.numpy()].tolist() == [5, 6]
    assert [read[rows].tolist() for rows in batch.prompt.pooled] == [[0, 1, 2], [12]]
    assert np.diff(batch.last.ragged.query_start.numpy()).tolist() == [3, 1, 3, 1]
