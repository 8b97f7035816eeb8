"""Figure 8 (a) of the paper, found in the time stamps of a real engine of three partitions."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from orca_master.engine.config import EngineConfig
from support.checkpoints import make_prompts
from support.engines import engine
from support.instrumented_worker import command

STAGE_SECONDS = "0.25"


@pytest.mark.exhaustive
def test_three_batches_overlap_on_three_stages_then_the_first_returns(checkpoint):
    """Requests A to F are queued before the scheduler starts, max batch size 2.

    Every stage takes at least a quarter of a second, so that a busy machine does not blur the picture.
    """
    workers = {partition: command("slow_rank.py", STAGE_SECONDS) for partition in range(3)}

    async def run():
        config = EngineConfig(max_batch_size=2, token_budget=None)
        async with engine(checkpoint("gpt2-head64-tied"), 3, config, workers, start=False) as harness:
            for name, prompt in zip("ABCDEF", make_prompts((3, 4, 5, 6, 7, 8)), strict=True):
                harness.submit(name, prompt, 3)
            await harness.engine.start()
            await harness.collect(6)
            return harness

    harness = asyncio.run(run())
    names = {
        sequence: "".join(scheduled.request.request_id for scheduled in batch.requests)
        for sequence, batch in harness.batches
    }
    assert list(names.values()) == ["AB", "CD", "EF"] * 3
    span = {(t.partition, t.sequence): (t.started_ns, t.ended_ns) for t in harness.timings}

    def overlap(*stages: tuple[int, int]) -> bool:
        return max(span[stage][0] for stage in stages) < min(span[stage][1] for stage in stages)

    first, second, third, returned = 1, 2, 3, 4
    # The pipeline is full: AB on the third worker, CD on the second, EF on the first, all at one moment.
    assert overlap((2, first), (1, second), (0, third))
    # Once AB has returned, A and B are selected again and follow EF.
    assert span[2, first][1] <= span[0, returned][0]
    assert span[0, third][1] <= span[0, returned][0]
    assert overlap((2, second), (1, third), (0, returned))
    for partition in range(3):  # each worker executes in sequence order, one at a time
        ends = [span[partition, sequence] for sequence in (first, second, third, returned)]
        assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(ends))
