"""The spare rank: when it is started, and which rank it may become."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker import rank_starter
from orca_worker.early_ranks import start_ranks
from orca_worker.rank_start import RankStart
from orca_worker.rank_starter import RankStarter
from orca_worker.ranks import Ranks
from support.variants import one_short

SCRIPT = Path(__file__).parents[1] / "support" / "scripted_rank.py"
START = RankStart((sys.executable, str(SCRIPT), json.dumps({"reads": [10, 20, 30]})), {"A": "1"}, (), "cpu")
LOAD = pb.RankCommand(load=pb.LoadRequest(partition=3))


async def nothing_asked(_: pb.RendezvousRequest) -> pb.RendezvousReply:
    raise AssertionError("a scripted rank meets nobody")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(rank_starter, "SPARE_DELAY", 0.0)


@contextlib.asynccontextmanager
async def starter(keeps_spare: bool = True) -> AsyncIterator[tuple[RankStarter, list[pb.Fault]]]:
    faults: list[pb.Fault] = []
    made = RankStarter(lambda _: None, faults.append, nothing_asked, keeps_spare)
    try:
        async with asyncio.timeout(100):
            yield made, faults
    finally:
        await made.end()


async def spare_pid(made: RankStarter) -> int:
    assert made._starting is not None
    await made._starting
    assert made._spare is not None
    return made._spare[1]._process.pid


def test_a_rank_is_the_spare_whatever_its_number_its_cores_and_its_device():
    async def run() -> None:
        async with starter() as (made, faults):
            made.prepare_spare(START)
            pid = await spare_pid(made)
            rank = await made.start(2, RankStart(START.command, dict(START.environment), (0,), "cuda:2"))
            try:
                assert rank._process.pid == pid
                read = [reply.load.loaded_bytes async for reply in rank.answers(LOAD, 100)]
                assert read[0] == 30, "the process has become rank 2"
                os.kill(pid, signal.SIGKILL)
                while not faults:
                    await asyncio.sleep(0.01)
                assert (faults[0].partition, faults[0].tensor_rank) == (3, 2)
                made.prepare_spare(START)
                assert await spare_pid(made) != pid
            finally:
                await rank.end()

    asyncio.run(run())


@pytest.mark.parametrize("spoiled", one_short(["environment", "command", "killed"]))
def test_another_process_is_started_if_the_spare_does_not_fit(spoiled):
    async def run() -> None:
        async with starter() as (made, faults):
            made.prepare_spare(START)
            pid = await spare_pid(made)
            wanted = START
            if spoiled == "environment":
                wanted = RankStart(START.command, {"A": "2"}, (), "cpu")
            elif spoiled == "command":
                wanted = RankStart((*START.command[:2], "{}"), START.environment, (), "cpu")
            else:
                os.kill(pid, signal.SIGKILL)
                while not faults:
                    await asyncio.sleep(0.01)
            rank = await made.start(0, wanted)
            assert rank._process.pid != pid
            assert made._spare is None
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            await rank.end()

    asyncio.run(run())


def test_a_load_that_is_cancelled_leaves_the_spare_to_the_next_one():
    """While it waits for the spare's sign of life."""

    async def run() -> None:
        async with starter() as (made, _):
            made.prepare_spare(START)
            pid = await spare_pid(made)
            assert made._spare is not None
            spare = made._spare[1]
            try:
                os.kill(pid, signal.SIGSTOP)
                starting = asyncio.create_task(made.start(0, START))
                while not spare._waiting:
                    await asyncio.sleep(0.01)
                starting.cancel()
                await asyncio.wait({starting})
                os.kill(pid, signal.SIGCONT)
                rank = await made.start(0, START)
                assert rank is spare
            finally:
                await spare.end()

    asyncio.run(run())


def test_a_start_does_not_wait_for_a_spare_that_is_not_due(monkeypatch):
    monkeypatch.setattr(rank_starter, "SPARE_DELAY", 1000.0)

    async def run() -> None:
        async with starter() as (made, _):
            made.prepare_spare(START)
            rank = await made.start(0, START)
            assert not rank.failed
            await rank.end()

    asyncio.run(run())


@pytest.mark.parametrize(("limit", "spare"), [(None, True), (1 << 30, True), ((1 << 30) - 1, False), (0, False)])
def test_scarce_memory_is_left_to_the_model(monkeypatch, limit, spare):
    monkeypatch.setattr(rank_starter, "host_memory", lambda: 1 << 40)
    monkeypatch.setattr(rank_starter, "memory_left", lambda: limit)

    async def run() -> None:
        async with starter() as (made, _):
            made.prepare_spare(START)
            await made._starting
            assert (made._spare is not None) == spare

    asyncio.run(run())


def test_none_is_kept_unless_asked_for():
    async def run() -> None:
        async with starter(keeps_spare=False) as (made, _):
            made.prepare_spare(START)
            assert made._starting is None

    asyncio.run(run())


def test_early_ranks_become_the_ranks_that_they_fit_and_the_rest_ends():
    async def run() -> None:
        async with starter() as (made, faults):
            other = RankStart(START.command, {"A": "2"}, (), "cpu")
            await made.adopt_early(start_ranks([other, START, other, START]))
            pids = [process._process.pid for _, process in made._early]
            os.kill(pids[0], signal.SIGKILL)
            while not faults:
                await asyncio.sleep(0.01)
            ranks = [await made.start(number, start) for number, start in enumerate((START, other, other))]
            try:
                assert [rank._process.pid for rank in ranks[:2]] == [pids[1], pids[2]]
                assert ranks[2]._process.pid not in pids, "the process that was killed is of no use"
                read = [reply.load.loaded_bytes async for reply in ranks[1].answers(LOAD, 100)]
                assert read[0] == 20, "the process has become rank 1"
                os.kill(pids[3], 0)
                await made.end_early()
                with pytest.raises(ProcessLookupError):
                    os.kill(pids[3], 0)
            finally:
                for rank in ranks:
                    await rank.end()

    asyncio.run(run())


def test_a_load_ends_the_early_ranks_that_it_has_no_use_for():
    async def run() -> None:
        async with starter() as (made, _):
            await made.adopt_early(start_ranks([START, START]))
            pids = [process._process.pid for _, process in made._early]
            ranks = await Ranks.spawn([START], 0, made)
            assert ([process._process.pid for process in ranks._processes], made._early) == (pids[:1], [])
            await ranks.end()
            await made.adopt_early(start_ranks([START]))

    asyncio.run(run())


def test_early_ranks_that_the_system_refuses_are_started_by_the_load(monkeypatch):
    def refused(*_: object, **__: object) -> subprocess.Popen[bytes]:
        raise OSError("no process left")

    async def run() -> None:
        async with starter() as (made, _):
            with monkeypatch.context() as patch:
                patch.setattr(subprocess, "Popen", refused)
                started = start_ranks([START])
            assert started == []
            await made.adopt_early(started)
            await (await made.start(0, START)).end()

    asyncio.run(run())
