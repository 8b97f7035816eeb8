"""Iterations that llama.cpp is given: each request's tokens in order, answers before prompts, within the batch."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.peer_programs import peer_program

SAMPLED = 7


class Library:
    """Stand-in for llama.cpp: records the decoded batches as (slot, position, token, whether logits are wanted)."""

    def __init__(self):
        self.batches = []
        self.cached = defaultdict(list)
        self.finished = []

    def llama_batch_init(self, tokens, embedding, sequences):
        rows = [0] * tokens
        return SimpleNamespace(
            n_tokens=0, token=rows, pos=[*rows], n_seq_id=[*rows], logits=[*rows], seq_id=[[0] for _ in rows]
        )

    def llama_get_memory(self, context):
        return None

    def llama_decode(self, context, batch):
        rows = [
            (batch.seq_id[row][0], batch.pos[row], batch.token[row], batch.logits[row]) for row in range(batch.n_tokens)
        ]
        self.batches.append(rows)
        for slot, position, token, _ in rows:
            assert position == len(self.cached[slot]), "the cache has no holes"
            self.cached[slot].append(token)
        return 0

    def llama_memory_seq_rm(self, memory, slot, first, last):
        self.finished.append(self.cached.pop(slot))


@pytest.mark.parametrize(
    ("prompts", "outputs", "size"),
    [
        ([[1, 2, 3]], [1], 1),
        ([[1, 2, 3], [4], [5, 6]], [3, 1, 2], 2),
        ([[1] * 1500, [2] * 1500, [3] * 3000], [4, 5, 2], 3),
        ([[1], [2], [3], [4], [5]], [2, 9, 1, 3, 1], 2),
    ],
)
def test_each_request_gets_its_tokens(monkeypatch, prompts, outputs, size):
    library = Library()
    with peer_program("llama_cpp") as module:
        job = module.Job(Path("m"), "float32", size, 1, "cpu", prompts, outputs)
        batches = module.Batches(library, None, 10, job)
        monkeypatch.setattr(batches, "_most_likely", lambda row: SAMPLED)
        assert batches.run(prompts) == outputs
        assert batches.run(prompts) == outputs
        limit = module.BATCH
    expected = [[*prompt, *[SAMPLED] * (count - 1)] for prompt, count in zip(prompts, outputs, strict=True)]
    assert sorted(library.finished) == sorted(2 * expected)
    assert not library.cached
    for rows in library.batches:
        assert len(rows) <= limit
        assert {slot for slot, *_ in rows} <= set(range(size))
    assert sum(wanted for rows in library.batches for *_, wanted in rows) == 2 * sum(outputs)


def test_answers_come_before_prompts(monkeypatch):
    library = Library()
    with peer_program("llama_cpp") as module:
        job = module.Job(Path("m"), "float32", 2, 1, "cpu", [[1] * 5, [2, 3], [4] * 3000], [1, 5, 1])
        batches = module.Batches(library, None, 10, job)
        monkeypatch.setattr(batches, "_most_likely", lambda row: SAMPLED)
        batches.run(job.prompts)
    second, third = library.batches[1], library.batches[2]
    assert second[0][:3] == (1, 2, SAMPLED)
    assert len(second) == 2048
    assert [row[2] for row in third] == [SAMPLED, *[4] * (3000 - 2047)]
