"""A request on which real ranks fail: it alone ends with an error, and all others get their tokens."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.engine_master import EngineMaster
from orca_master.scheduling.request import FinishReason
from support.engines import Harness, topology, worker_processes
from support.instrumented_worker import command

NAME = "qwen2-gqa-tied"
POISON = 77


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "cause"),
    [
        pytest.param("raise", f"no kernel for token {POISON}", marks=pytest.mark.exhaustive),
        ("crash", "killed by SIGSEGV"),
    ],
)
def test_a_request_on_which_ranks_fail_ends_alone(checkpoint, end, cause):
    prompts = {f"r{index}": (10 + index, 20, 30) for index in range(5)}

    async def run(addresses):
        harness = Harness()
        config = dataclasses.replace(EngineConfig(), worker_owner=WorkerOwner.CLUSTER, recovery_timeout=120.0)
        harness.engine = EngineMaster(topology(checkpoint(NAME), addresses), config, harness.deliver, harness)
        await harness.engine.start()
        try:
            for name, prompt in prompts.items():
                harness.submit(name, prompt, 40, temperature=0.8, seed=3)
            undisturbed = await harness.collect(len(prompts))
            for name, prompt in prompts.items():
                harness.submit(name, prompt, 40, temperature=0.8, seed=3)
            harness.submit("bad", (POISON,) * 4, 5)
            tokens: dict[str, list[int]] = {}
            error, num_ended = None, 0
            async with asyncio.timeout(120):
                while num_ended <= len(prompts):
                    output = await harness.outputs.get()
                    assert output.finish_reason is not FinishReason.ERROR, output.error
                    num_ended += output.finish_reason is not None
                    if output.finish_reason is FinishReason.FAULT:
                        error = output.error
                        assert output.request_id == "bad"
                    elif output.token is not None:
                        tokens.setdefault(output.request_id, []).append(output.token)
            assert tokens == undisturbed
            assert error is not None
            assert cause in error
            harness.assert_nothing_held()
        finally:
            await harness.engine.stop("the test ends")

    poisoned = command("poisoned_rank.py", str(POISON), end)
    with worker_processes(2, {0: poisoned}) as (addresses, _):
        asyncio.run(asyncio.wait_for(run(addresses), 200))
