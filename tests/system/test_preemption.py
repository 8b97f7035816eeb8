"""A request that is rewound at any point goes on with the very tokens it would have had (docs/contracts.md, 5)."""

from __future__ import annotations

import asyncio

import pytest
from orca_master.engine.config import EngineConfig
from orca_master.scheduling.request import RequestState
from support.checkpoints import make_prompts
from support.engines import engine_over, topology
from support.variants import one_short

NUM_TOKENS = 12
SAMPLING = (
    {},
    {"temperature": 0.9, "top_p": 0.8, "seed": 11},
    {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.3},
)


@pytest.mark.long
@pytest.mark.parametrize(
    "variant",
    one_short(["gpt2-head80-untied", "llama-gqa-tied", "mistral-gqa", "qwen2-gqa-tied", "qwen3-gqa-tied"]),
)
def test_a_rewind_at_every_point_leaves_the_tokens_unchanged(variant, checkpoint, worker_pool):
    """One request per point: number i is rewound when it has i tokens, at rest or with an iteration in flight."""
    (prompt,) = make_prompts((40,))

    async def run():
        # A budget of 16 cuts the prompt into chunks, so that some rewinds fall between two of them.
        config = EngineConfig(max_batch_size=8, token_budget=16)
        async with engine_over(topology(checkpoint(variant), worker_pool.addresses(2)), config) as harness:
            for number, sampling in enumerate(SAMPLING):
                harness.submit(f"expected-{number}", prompt, NUM_TOKENS, **sampling)
            expected = await harness.collect(len(SAMPLING))
            rewound = set()
            states = set()
            on_dispatch = harness.on_dispatch

            def rewind_those_that_are_due(sequence, batch):
                on_dispatch(sequence, batch)
                asyncio.get_running_loop().call_soon(rewind)

            def rewind():
                for request in harness.engine._requests:
                    request_id = request.request_id
                    held = request_id in harness.engine.scheduler._pipeline_of
                    if held and request_id not in rewound and len(request.generated) == int(request_id.split("-")[1]):
                        rewound.add(request_id)
                        states.add((request.state, request.num_computed > 0))
                        harness.engine.scheduler.rewind(request)
                harness.engine._dispatch()

            harness.engine._dispatcher._observer = type("Observer", (), {
                "on_dispatch": staticmethod(rewind_those_that_are_due), "on_timing": staticmethod(harness.on_timing),
                "on_preemption": staticmethod(harness.on_preemption), "on_drafts": staticmethod(harness.on_drafts),
            })  # fmt: skip
            names = [f"{number}-{point}" for number in range(len(SAMPLING)) for point in range(NUM_TOKENS)]
            for name in names:
                harness.submit(name, prompt, NUM_TOKENS, **SAMPLING[int(name[0])])
            tokens = await harness.collect(len(names))
            assert rewound == set(names)
            assert (RequestState.RUNNING, True) in states
            harness.assert_nothing_held()
        for name in names:
            assert tokens[name] == expected[f"expected-{name[0]}"], name

    asyncio.run(run())


def test_paged_admission_preempts_and_says_the_same(checkpoint, worker_pool):
    """Slots for two and a half requests, eight requests: some are preempted, all say what they say alone."""
    prompts = make_prompts((20, 30, 40, 50, 20, 30, 40, 50))

    async def run():
        config = EngineConfig(max_batch_size=8, admission="paged", kv_slots=256)
        async with engine_over(topology(checkpoint("llama-gqa-tied"), worker_pool.addresses(2)), config) as harness:
            alone = {}
            for index, prompt in enumerate(prompts):
                harness.submit(str(index), prompt, 50)
                alone |= await harness.collect(1)
            assert harness.preemptions == 0
            for index, prompt in enumerate(prompts):
                harness.submit(str(index), prompt, 50)
            together = await harness.collect(len(prompts))
            assert harness.preemptions > 0
            assert together == alone
            harness.assert_nothing_held()

    asyncio.run(run())
