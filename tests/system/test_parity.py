"""Correct means the same greedy tokens as `transformers`, through master, gRPC, gloo and P x T ranks."""

from __future__ import annotations

import asyncio

import pytest
from orca_master.engine.config import EngineConfig
from support.checkpoints import VARIANTS
from support.engines import engine_over, topology
from support.variants import partitioned_variant_params

LENGTHS = (1, 2, 33, 600)
NUM_TOKENS = 32


@pytest.mark.parametrize(("variant", "partitions", "ranks"), partitioned_variant_params())
def test_greedy_tokens_equal_transformers(variant, partitions, ranks, checkpoint, references, worker_pool):
    """Prompts of 1, 2, 33 and 600 tokens, sent together; 5 layers do not divide evenly by 2 or 3."""
    expected = references(variant, LENGTHS, NUM_TOKENS)
    # A budget below the longest prompt makes chunks that run beside the others' increments.
    config = EngineConfig(max_batch_size=4, token_budget=256)

    async def run() -> None:
        spec = topology(checkpoint(variant), worker_pool.addresses(partitions, ranks), ranks)
        async with engine_over(spec, config) as harness:
            for index, reference in enumerate(expected):
                harness.submit(str(index), reference.prompt, NUM_TOKENS)
            tokens = await harness.collect(len(expected))
            assert harness.mixed_iterations() >= 1
            harness.assert_nothing_held()
        for index, reference in enumerate(expected):
            assert tokens[str(index)] == reference.greedy, f"prompt of {len(reference.prompt)} tokens"

    asyncio.run(run())


@pytest.mark.long
def test_the_references_are_not_trivial(references):
    """A model that repeats one token would hide mistakes."""
    for variant in VARIANTS:
        distinct = [len(set(reference.greedy)) for reference in references(variant, LENGTHS, NUM_TOKENS)]
        assert sum(distinct) > 20, (variant, distinct)
