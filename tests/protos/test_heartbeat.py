"""`beat`: signs of life until their reader has ended, also while nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest
from orca_protos import heartbeat


@pytest.fixture
def pipe(monkeypatch):
    monkeypatch.setattr(heartbeat, "INTERVAL_SECONDS", 0.001)
    ends = os.pipe()
    yield ends
    os.close(ends[1])


def test_it_beats_until_the_reader_has_ended(pipe):
    reader, writer = pipe

    async def play() -> bytes:
        beating = asyncio.create_task(heartbeat.beat(writer))
        read = await asyncio.to_thread(os.read, reader, 1)
        read += await asyncio.to_thread(os.read, reader, 1)
        os.close(reader)
        async with asyncio.timeout(60):
            await beating
        return read

    assert asyncio.run(play()) == b".."


def test_a_full_pipe_does_not_end_it(pipe):
    reader, writer = pipe
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)

    async def play() -> None:
        beating = asyncio.create_task(heartbeat.beat(writer))
        await asyncio.sleep(0.02)
        assert not beating.done()
        while b"." not in await asyncio.to_thread(os.read, reader, 1 << 16):
            pass
        beating.cancel()

    asyncio.run(asyncio.wait_for(play(), 60))
    os.close(reader)
