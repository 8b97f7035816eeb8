"""Pipelines whose activations go through the staging of a GPU over gloo (support/staged_rank.py), with real gloo."""

from __future__ import annotations

import pytest
from support.engines import greedy_tokens
from support.instrumented_worker import command

pytestmark = pytest.mark.long

NAME = "gpt2-head64-tied"


@pytest.mark.parametrize("num_partitions", [2, 3])
def test_tokens_are_those_of_the_model(num_partitions, checkpoint, references, tmp_path):
    """Batches of several sizes, with at least as many iterations in flight as partitions."""
    workers = {part: command("staged_rank.py", str(tmp_path / str(part))) for part in range(num_partitions)}
    expected = references(NAME, (1, 2, 33, 50, 17), 32)
    tokens = greedy_tokens(checkpoint(NAME), [each.prompt for each in expected], 32, workers)
    assert tokens == [each.greedy for each in expected]
    for part in range(num_partitions - 1):
        sends = (tmp_path / str(part)).read_text().splitlines()
        assert set(sends) == {f"sends {part + 1}"}
        assert len(sends) >= 32
    assert not (tmp_path / str(num_partitions - 1)).exists(), "the last partition sends no activations"
