"""Recorded increments: the same logits as transformers', whatever the batch's size, and no strange block touched."""

from __future__ import annotations

import logging

import pytest
import torch
from orca_kernels.cuda.kernels import CudaKernels
from orca_worker.increment_graphs import BATCH_SIZES, IdleRows, IncrementGraphs
from support.cuda_emulator import EmulatedLauncher
from support.partitions import CPU, PartitionedModel
from support.recording import Recorder

LENGTHS = (1, 2, 33, 50, 17)
NUM_TOKENS = 32
VARIANTS = ("gpt2-head64-tied", "llama-head80-untied", "mistral-gqa", "qwen3-gqa-tied")
BATCHES = ((0, 1, 2), (4, 3, 2, 1, 0), (2,), (3, 0, 1), (1, 4), (0, 1, 2, 3, 4))
"""Prompts whose next token is computed, iteration by iteration."""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory) -> EmulatedLauncher:
    return EmulatedLauncher(tmp_path_factory.mktemp("cuda"))


class Recorded:
    """A model whose increments are recorded, a recorder for each of its partitions."""

    def __init__(self, path, num_partitions, launcher, record=None):
        self.recorders = [Recorder(launcher) for _ in range(num_partitions)]
        self.model = PartitionedModel(path, num_partitions, kernels=[CudaKernels(one) for one in self.recorders])
        (self.partitions,) = self.model.ranks
        self.idle = self.model.take_block()
        self.graphs = [
            IncrementGraphs(self._forward(part), IdleRows(self.idle, 44), CPU, record or recorder)
            for part, recorder in zip(self.partitions, self.recorders, strict=True)
        ]

    @staticmethod
    def _forward(partition):
        def forward(tokens, ragged, hidden):
            return partition(partition.embed(tokens, ragged) if hidden is None else hidden, ragged, None)

        return forward

    @torch.inference_mode()
    def increments(self, parts):
        batch = self.model.rows.batch(self.model.iteration(parts, max_tokens=96))
        hidden = None
        for graphs in self.graphs:
            hidden = graphs.run(batch, hidden)
        return self.partitions[-1].logits(hidden)


@pytest.mark.parametrize("num_partitions", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_replayed_increments_equal_transformers(variant, num_partitions, checkpoint, references, launcher):
    expected = references(variant, LENGTHS, NUM_TOKENS)
    recorded = Recorded(checkpoint(variant), num_partitions, launcher)
    model = recorded.model
    prompts = [(row, 0, list(reference.prompt)) for row, reference in enumerate(expected)]
    model.logits(model.iteration(prompts, max_tokens=96))
    generated = [0] * len(expected)
    for rows in BATCHES:
        parts, wanted = [], []
        for row in rows:
            reference, place = expected[row], len(expected[row].prompt) + generated[row]
            parts.append((row, place, [reference.greedy[generated[row]]]))
            wanted.append(reference.logits[place])
            generated[row] += 1
        torch.testing.assert_close(recorded.increments(parts), torch.stack(wanted), atol=1e-4, rtol=0)
    assert [recorder.sizes for recorder in recorded.recorders] == [[4, 8, 1, 2]] * num_partitions
    for partition in recorded.partitions:
        for attention in partition.attentions():
            untouched = attention.pools.keys[model.free_blocks]
            assert untouched.isnan().all(), "an idle row wrote into a block that it was not given"


def test_what_cannot_be_recorded_is_run_as_it_is(checkpoint, references, launcher, caplog):
    expected = references("gpt2-head64-tied", LENGTHS, NUM_TOKENS)

    def refuse(work):
        raise RuntimeError("operation not permitted when stream is capturing")

    recorded = Recorded(checkpoint("gpt2-head64-tied"), 1, launcher, refuse)
    model = recorded.model
    prompt = list(expected[2].prompt)
    batch = model.rows.batch(model.iteration([(2, 0, prompt)], max_tokens=96))
    assert not recorded.graphs[0].take(batch)
    with torch.inference_mode():
        recorded._forward(recorded.partitions[0])(batch.tokens, batch.ragged, None)
    with caplog.at_level(logging.WARNING):
        logits = recorded.increments([(2, len(prompt), [expected[2].greedy[0]])])
    torch.testing.assert_close(logits[0], expected[2].logits[len(prompt)], atol=1e-4, rtol=0)
    assert [record.getMessage() for record in caplog.records] == [
        "a batch of 1 could not be recorded, kernels are launched one by one: "
        "operation not permitted when stream is capturing"
    ]
    batch = model.rows.batch(model.iteration([(2, len(prompt) + 1, [expected[2].greedy[1]])], max_tokens=96))
    assert not recorded.graphs[0].take(batch), "it is not tried again"


def test_only_increments_are_taken(checkpoint, launcher):
    recorded = Recorded(checkpoint("gpt2-head64-tied"), 1, launcher)
    model = recorded.model

    def takes(parts, sample=True):
        iteration = model.iteration(parts, max_tokens=16)
        iteration.sample[0] = sample
        return recorded.graphs[0].take(model.rows.batch(iteration))

    assert takes([(0, 5, [1]), (1, 9, [2])])
    assert not takes([(0, 5, [1]), (1, 9, [2, 3])]), "a chunk of a prompt"
    assert not takes([(0, 5, [1]), (1, 9, [2])], sample=False), "the head reads only some of the tokens"
    full = BATCH_SIZES[-1]
    model.logits(model.iteration([(full, 0, [1])], max_tokens=16))  # the table grows to hold that row
    assert takes([(row, 5, [1]) for row in range(full)])
    assert not takes([(row, 5, [1]) for row in range(full + 1)])
