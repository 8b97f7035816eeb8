"""Why an epoch ended: the cause, and not what it led to elsewhere."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from orca_worker import epoch as epoch_module
from orca_worker.epoch import Epoch
from orca_worker.errors import RankError


class BrokenStream:
    """A Run stream to a next controller that ended with an error."""

    def __aiter__(self) -> BrokenStream:
        return self

    async def __anext__(self) -> None:
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.ABORTED, grpc.aio.Metadata(), grpc.aio.Metadata(), "rank 1 lost its neighbour"
        )


async def reason(own_fault_after: float | None) -> str:
    epoch = Epoch(1, BrokenStream(), alone=False)
    if own_fault_after is not None:
        await asyncio.sleep(own_fault_after)
        epoch.expect_own_fault()
        await asyncio.sleep(own_fault_after)
        epoch.end("rank 0 ended")
    with pytest.raises(RankError) as error:
        await asyncio.wait_for(epoch.result(), 30)
    return str(error.value)


def test_a_neighbours_complaint_waits_for_the_own_fault(monkeypatch):
    """The neighbour may be faster to notice that this worker's rank is gone than its own controller."""
    monkeypatch.setattr(epoch_module, "OWN_FAULT_SECONDS", 30.0)
    assert asyncio.run(reason(own_fault_after=0.05)) == "rank 0 ended"


def test_without_an_own_fault_the_complaint_is_the_reason(monkeypatch):
    monkeypatch.setattr(epoch_module, "OWN_FAULT_SECONDS", 0.05)
    assert asyncio.run(reason(own_fault_after=None)) == "next partition: rank 1 lost its neighbour"
