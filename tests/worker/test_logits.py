"""Logits of every family against `transformers`, and selective batching as the paper means it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from orca_worker.layers import Linear
from support.checkpoints import VARIANTS, make_prompts
from support.partitions import PartitionedModel

LENGTHS = (1, 2, 33, 600)
NUM_TOKENS = 32


@pytest.mark.parametrize("num_partitions", [1, 2, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant, num_partitions, checkpoint, references):
    """fp32 within 1e-4, after every token: whole prompts, chunks beside increments, increments alone."""
    expected = references(variant, LENGTHS, NUM_TOKENS)
    model = PartitionedModel(checkpoint(variant), num_partitions)
    sequences = [[*reference.prompt, *reference.greedy][:-1] for reference in expected]
    computed = [0] * len(sequences)
    mixed = 0
    for step in range(NUM_TOKENS + 8):
        parts, wanted = [], []
        for row, (reference, sequence) in enumerate(zip(expected, sequences, strict=True)):
            # Requests join one iteration after the other; the long prompt comes in chunks of 250.
            if step < row or computed[row] == len(sequence):
                continue
            rest = len(reference.prompt) - computed[row]
            count = min(rest, 250) if rest > 0 else 1
            parts.append((row, computed[row], sequence[computed[row] : computed[row] + count]))
            wanted.append(reference.logits[computed[row] : computed[row] + count])
            computed[row] += count
        if not parts:
            continue
        phases = {context < len(expected[row].prompt) for row, context, _ in parts}
        mixed += len(phases) == 2
        logits = model.logits(model.iteration(parts, max_tokens=640))
        torch.testing.assert_close(logits, torch.cat(wanted), atol=1e-4, rtol=0)
    assert mixed >= 2
    assert computed == [len(sequence) for sequence in sequences]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_linear_of_a_layer_runs_once_over_all_tokens(variant, checkpoint):
    """A mixed iteration: an initiation of 33 tokens, one of 2 and two increments are one [37, H] tensor."""
    model = PartitionedModel(checkpoint(variant), 2)
    first, second, third, fourth = (list(prompt) for prompt in make_prompts((5, 9, 33, 2)))
    model.logits(model.iteration([(0, 0, first), (1, 0, second)], max_tokens=64))
    calls: Counter[str] = Counter()
    shapes = set()

    def count(name):
        def hook(_module, inputs, _output):
            calls[name] += 1
            shapes.add(inputs[0].shape[0])

        return hook

    linears = 0
    for index, partition in enumerate(model.partitions):
        for name, module in partition.named_modules():
            if isinstance(module, Linear) and name != "head":
                linears += 1
                module.register_forward_hook(count(f"{index}.{name}"))
    model.logits(model.iteration([(0, 5, [7]), (1, 9, [8]), (2, 0, third), (3, 0, fourth)], max_tokens=64))
    assert linears == 5 * (4 if variant.startswith("gpt2") else 7)
    assert len(calls) == linears
    assert set(calls.values()) == {1}
    assert shapes == {37}


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_partition_reads_only_its_own_tensors(variant, checkpoint, monkeypatch):
    """No tensor is read twice but a tied embedding, and together the partitions read all of them."""
    from orca_worker.checkpoint import Checkpoint

    read: list[list[str]] = []
    original_init, original_read = Checkpoint.__init__, Checkpoint.read

    def init(self, *arguments):
        read.append([])
        original_init(self, *arguments)

    def spy(self, name, shape):
        read[-1].append(name)
        return original_read(self, name, shape)

    monkeypatch.setattr(Checkpoint, "__init__", init)
    monkeypatch.setattr(Checkpoint, "read", spy)
    path = checkpoint(variant)
    PartitionedModel(path, 3)
    shared = set(read[0]) & set(read[2])
    assert shared == (
        {"transformer.wte.weight"}
        if variant == "gpt2-tied"
        else {"model.embed_tokens.weight"}
        if variant == "llama-gqa-tied"
        else set()
    )
    assert not set(read[1]) & (set(read[0]) | set(read[2]))
    in_file = set(Checkpoint(path, torch.float32, torch.device("cpu"), lambda _: None)._file_of)
    assert set().union(*read) == in_file
