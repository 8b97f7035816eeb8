"""`PartitionLoader`: no call that is cancelled loses the processes of the ranks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from orca_protos import engine_pb2 as pb
from orca_worker.partition_loader import PartitionLoader
from orca_worker.rank_starter import RankStarter
from orca_worker.ranks import Ranks

SCRIPT = Path(__file__).parents[1] / "support" / "scripted_rank.py"
REQUEST = pb.LoadRequest(tensor_parallel_size=1, workers_on_host=1, device="cpu", communication_backend="gloo")


async def nothing_asked(_: pb.RendezvousRequest) -> pb.RendezvousReply:
    raise AssertionError("a scripted rank meets nobody")


async def no_epoch(_: str) -> None:
    """There is none to leave."""


def test_ranks_that_were_unloaded_for_a_load_that_is_cancelled_serve_the_next_one(monkeypatch):
    keep = Ranks.keep

    async def run() -> None:
        starter = RankStarter(lambda _: None, lambda _: None, nothing_asked)
        loader = PartitionLoader(starter, (sys.executable, str(SCRIPT), "{}"), False, no_epoch)
        before = await loader._empty_ranks(REQUEST)
        (process,) = before._processes
        try:

            async def keep_and_leave(ranks: Ranks, starts: object) -> Ranks | None:
                kept = await keep(ranks, starts)
                loading.cancel()
                return kept

            with monkeypatch.context() as patched:
                patched.setattr(Ranks, "keep", keep_and_leave)
                loading = asyncio.create_task(loader._empty_ranks(REQUEST))
                await asyncio.wait({loading})
            assert loading.cancelled()
            assert (await loader._empty_ranks(REQUEST))._processes == [process]
        finally:
            await loader.end()
            await process.end()

    asyncio.run(asyncio.wait_for(run(), 100))
