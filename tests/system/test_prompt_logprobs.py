"""Log probabilities of prompts are those of `transformers`, through master, workers and P x T ranks."""

from __future__ import annotations

import asyncio

import pytest
import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.engine.config import EngineConfig
from orca_protos import engine_pb2 as pb
from support.checkpoints import VARIANTS, Reference
from support.engines import Harness, engine_over, topology
from support.variants import one_short_row

LENGTHS = (1, 2, 33, 600)
NUM_TOKENS = 32
LIKELY = 20
VARIANTS_HERE = [
    "llama-gqa-tied",
    pytest.param("gpt2-head64-tied", marks=pytest.mark.long),
    *(
        pytest.param(name, marks=pytest.mark.exhaustive)
        for name in sorted(VARIANTS.keys() - {"gpt2-head64-tied", "llama-gqa-tied"})
    ),
]


def joined(parts: list[pb.PromptLogprobs]) -> pb.PromptLogprobs:
    """Return the parts of a prompt as one."""
    whole = pb.PromptLogprobs()
    for part in parts:
        whole.MergeFrom(part)
    return whole


def check(found: pb.PromptLogprobs, reference: Reference, count: int) -> None:
    """Compare with the reference's logits: values within 1e-4, the order of tokens as far as values differ by more."""
    length = len(reference.prompt)
    expected = torch.log_softmax(reference.logits[: length - 1], dim=-1)
    targets = torch.tensor(reference.prompt[1:], dtype=torch.int64)
    own = expected.gather(1, targets.unsqueeze(1))
    torch.testing.assert_close(torch.tensor(found.logprob), own.squeeze(1), atol=1e-4, rtol=0)
    likely = torch.tensor(found.likely_token, dtype=torch.int64).view(length - 1, count)
    values = torch.tensor(found.likely_logprob).view(length - 1, count)
    torch.testing.assert_close(values, expected.gather(1, likely), atol=1e-4, rtol=0)
    torch.testing.assert_close(values, expected.topk(count).values, atol=1e-4, rtol=0)
    ranks = torch.tensor(found.rank, dtype=torch.int64)
    assert ((expected > own + 2e-4).sum(1) < ranks).all()
    assert (ranks <= (expected > own - 2e-4).sum(1)).all()


async def submit_all(harness: Harness, references: list[Reference], name: str) -> None:
    """Submit each prompt with and without log probabilities, and compare what comes back."""
    harness.prompt_logprobs.clear()
    for index, reference in enumerate(references):
        for count in (LIKELY, 0, None):
            harness.engine.submit(
                harness.submission(f"{name}-{index}-{count}", reference.prompt, NUM_TOKENS, prompt_logprobs=count)  # type: ignore[arg-type]
            )
    tokens = await harness.collect(3 * len(references))
    for index, reference in enumerate(references):
        for count in (LIKELY, 0, None):
            assert tokens[f"{name}-{index}-{count}"] == reference.greedy
            parts = harness.prompt_logprobs.pop(f"{name}-{index}-{count}", [])
            if count is None or len(reference.prompt) == 1:
                assert parts == []
            else:
                check(joined(parts), reference, count)


@pytest.mark.parametrize(("partitions", "ranks"), one_short_row([(2, 1), (1, 1), (1, 2), (2, 2)]))
@pytest.mark.parametrize("variant", VARIANTS_HERE)
def test_log_probabilities_of_prompts_equal_transformers(
    variant, partitions, ranks, checkpoint, references, worker_pool
):
    """Prompts of 1, 2, 33 and 600 tokens, in chunks beside increments of others; the second time with a full cache."""
    expected = references(variant, LENGTHS, NUM_TOKENS)
    config = EngineConfig(max_batch_size=5, token_budget=100)

    async def run() -> None:
        spec = topology(checkpoint(variant), worker_pool.addresses(partitions, ranks), ranks)
        async with engine_over(spec, config) as harness:
            for name in ("first", "again"):
                await submit_all(harness, expected, name)
            assert sum(batch.cache_use.num_hits for _, batch in harness.batches) > 0
            harness.assert_nothing_held()

    asyncio.run(run())


async def rewind_some(harness: Harness) -> int:
    """Rewind each request once while a part of its prompt's log probabilities has returned; return their number."""
    rewound: set[str] = set()
    scheduler = harness.engine.scheduler
    while len(harness.engine._requests):
        for request in scheduler.admitted:
            partly = request.awaits_prompt_logprobs and request.num_positions_read > BLOCK_SIZE
            if partly and request.request_id not in rewound:
                rewound.add(request.request_id)
                scheduler.rewind(request)
                harness.engine._dispatch()
                break
        await asyncio.sleep(0)
    return len(rewound)


def test_the_cache_and_rewinds_change_no_bit(checkpoint, references, worker_pool):
    """Level L2: computed once without a cache, and beside others with a cache, where requests are computed again."""
    expected = references("llama-gqa-tied", LENGTHS, NUM_TOKENS)
    alone = EngineConfig(max_batch_size=1, token_budget=None, prefix_caching=False, deterministic=True)
    together = EngineConfig(max_batch_size=5, token_budget=48, admission="paged", deterministic=True)
    spec = topology(checkpoint("llama-gqa-tied"), worker_pool.addresses(1))

    async def run(config: EngineConfig) -> dict[str, pb.PromptLogprobs]:
        async with engine_over(spec, config) as harness:
            for index, reference in enumerate(expected):
                for count in range(3):
                    harness.engine.submit(
                        harness.submission(f"{index}-{count}", reference.prompt, NUM_TOKENS, prompt_logprobs=count)
                    )
            if config is together:
                assert await rewind_some(harness) >= 3
            await harness.collect(3 * len(expected))
            return {name: joined(parts) for name, parts in harness.prompt_logprobs.items()}

    first, second = asyncio.run(run(alone)), asyncio.run(run(together))
    assert first.keys() == second.keys()
    for name, whole in first.items():
        whole.index = second[name].index = 0
        assert whole == second[name]
