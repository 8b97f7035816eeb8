"""Ranks that start an iteration before they read what the one before it sampled, as they do on a GPU."""

from __future__ import annotations

import pytest
from support.engines import greedy_tokens
from support.instrumented_worker import command

NAME = "gpt2-head64-tied"


@pytest.mark.long
@pytest.mark.parametrize("num_partitions", [1, 2])
def test_the_next_iteration_starts_before_the_tokens_are_read(num_partitions, checkpoint, references, tmp_path):
    """The tokens are transformers'; with one partition an iteration's own input never was on the host."""
    workers = {part: command("ahead_rank.py", str(tmp_path / str(part))) for part in range(num_partitions)}
    expected = references(NAME, (1, 2, 33, 50, 17), 32)
    tokens = greedy_tokens(checkpoint(NAME), [each.prompt for each in expected], 32, workers)
    assert tokens == [each.greedy for each in expected]
    last = (tmp_path / str(num_partitions - 1)).read_text().splitlines()
    started = [int(line.split()[1]) for line in last if line.startswith("started")]
    answered = [int(line.split()[1]) for line in last if line.startswith("answered")]
    assert started == answered == list(range(1, len(started) + 1)), "every iteration once, in order"
    ahead = [n for n in started[:-1] if last.index(f"started {n + 1}") < last.index(f"answered {n}")]
    assert ahead, last
    for n in started[2:]:
        assert last.index(f"answered {n - 2}") < last.index(f"started {n}"), "one ahead, no more"
