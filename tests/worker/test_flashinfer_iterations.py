"""Iterations of whole models over attention by FlashInfer, which support/paged_flashinfer.py plays on the CPU."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cuda.flashinfer_attention import FlashInferAttention, FlashInferSource
from orca_kernels.reference import ReferenceKernels
from support.paged_attention import WithLibrary
from support.paged_flashinfer import FakeEvent, FakeFlashInfer
from support.partitions import CPU, PartitionedModel

ITERATIONS = (
    ((0, 0, 30), (1, 0, 1)),
    ((0, 30, 1), (1, 1, 33), (2, 0, 50)),
    ((0, 31, 1), (1, 34, 1), (2, 50, 1)),
    ((2, 51, 9), (0, 32, 1)),
)
"""Requests of each iteration: row, context and new tokens."""


@pytest.mark.parametrize("variant", ["llama-gqa-tied", "mistral-gqa", "gemma2-gqa-tied"])
def test_the_logits_are_those_of_the_reference(variant, checkpoint):
    """Without a window, with one in each layer, and with softcaps and a window in some layers."""
    path, fake = checkpoint(variant), FakeFlashInfer()
    config, source = PartitionedModel(path, 1).config, FlashInferSource(CPU, lambda: fake, FakeEvent)
    served, reference = (
        PartitionedModel(path, 1, dtype=torch.bfloat16, kernels=[kernels])
        for kernels in (WithLibrary(source, config), ReferenceKernels())
    )
    tokens = torch.randint(config.vocabulary_size, (3, 64), generator=torch.Generator().manual_seed(0)).tolist()
    for requests in ITERATIONS:
        parts = [(row, context, tokens[row][context : context + count]) for row, context, count in requests]
        logits, expected = (model.logits(model.iteration(parts, max_tokens=96)) for model in (served, reference))
        torch.testing.assert_close(logits, expected, atol=0.1, rtol=0.05)
    ((partition,),) = served.ranks
    assert all(isinstance(layer._attention, FlashInferAttention) for layer in partition.attentions())
    forms = {layer._attention._form for layer in partition.attentions()}
    assert len(fake.wrappers) == len(forms)
    for wrapper in fake.wrappers:
        assert len(wrapper.plans) == 1 + len(ITERATIONS), "one of the self-test, and one for all layers of an iteration"
    assert sum(wrapper.runs - 1 for wrapper in fake.wrappers) == len(ITERATIONS) * config.num_layers
