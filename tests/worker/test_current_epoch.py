"""`CurrentEpoch`: which epochs are prepared, who waits until one is formed, and what ends with it."""

from __future__ import annotations

import asyncio

import pytest
from orca_protos import deadlines
from orca_protos import engine_pb2 as pb
from orca_protos.wire import HIGHEST_EPOCH
from orca_worker.current_epoch import CurrentEpoch
from orca_worker.epoch import Epoch
from orca_worker.errors import EpochError, FaultError


def run(scene) -> None:
    asyncio.run(asyncio.wait_for(scene(CurrentEpoch(None)), 30))


async def begun(current: CurrentEpoch) -> Epoch:
    """Prepare and begin epoch 3."""
    await current.prepare(3)
    epoch = Epoch(3, 0, None, True)
    await current.begin(epoch)
    return epoch


@pytest.mark.parametrize(
    ("number", "words"), [(6, "is over: the current epoch is 7"), (7, "is over"), (HIGHEST_EPOCH + 1, "exceeds")]
)
def test_epochs_only_rise(number, words):
    async def scene(current):
        await current.prepare(7)
        with pytest.raises(EpochError, match=words):
            await current.prepare(number)
        assert current.highest == 7
        current.check_prepared(7)
        with pytest.raises(EpochError, match="was not prepared"):
            current.check_prepared(8)

    run(scene)


def test_a_stream_of_a_faster_neighbour_waits_until_the_epoch_is_formed():
    async def scene(current):
        await current.prepare(3)
        waiting = asyncio.create_task(current.formed("3"))
        await asyncio.sleep(0)
        assert not waiting.done()
        epoch = Epoch(3, 0, None, True)
        await current.begin(epoch)
        assert await waiting is epoch
        with pytest.raises(EpochError, match="epoch none is not the current one, 3"):
            await current.formed("")

    run(scene)


def test_a_stream_that_its_caller_cancels_when_the_epoch_is_formed_ends():
    async def scene(current):
        await current.prepare(3)
        waiting = asyncio.create_task(current.formed("3"))
        await asyncio.sleep(0)
        await current.begin(Epoch(3, 0, None, True))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(scene)


def test_a_worker_serves_a_master_while_its_stream_is_open():
    async def scene(current):
        await current.prepare(3, "a")
        epoch = Epoch(3, 0, None, True)
        await current.begin(epoch)
        assert current.serving_master == ""  # formed, but the stream is not open yet
        with epoch.until_over():
            assert current.serving_master == "a"
        assert current.serving_master == ""

        async def stream() -> None:
            with epoch.until_over():
                await asyncio.Event().wait()

        serving = asyncio.create_task(stream())
        await asyncio.sleep(0)
        assert current.serving_master == "a"
        await current.prepare(4, "b")
        assert current.serving_master == ""
        with pytest.raises(FaultError):
            await serving

    run(scene)


def test_the_wait_for_an_epoch_is_bounded(monkeypatch):
    monkeypatch.setattr(deadlines, "NEIGHBOUR_FORMED_SECONDS", 0.01)

    async def scene(current):
        await current.prepare(3)
        with pytest.raises(EpochError, match="epoch 3 was not formed"):
            await current.formed("3")

    run(scene)


def test_the_next_epoch_ends_the_one_before():
    async def scene(current):
        epoch = await begun(current)
        rendezvous = current.rendezvous
        await current.prepare(4)
        with pytest.raises(FaultError, match="epoch 4 is being formed"):
            await epoch.result()
        assert current.running is None
        assert current.rendezvous is not rendezvous
        assert current.last_sequence == 0

    run(scene)


def test_faults_of_another_epoch_are_dropped():
    async def scene(current):
        epoch = await begun(current)
        result = asyncio.create_task(epoch.result())
        current.report(pb.Fault(epoch=2, message="late", kind=pb.FAULT_KIND_CAUSE))
        await asyncio.sleep(0)
        assert not result.done()
        current.report(pb.Fault(epoch=3, message="out of luck", kind=pb.FAULT_KIND_CAUSE))
        with pytest.raises(FaultError, match="out of luck"):
            await result

    run(scene)
