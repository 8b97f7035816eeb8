"""Which rank processes a second load keeps, and that a kept process serves the next model as a new one would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from orca_master.engine.config import EngineConfig
from orca_protos import engine_pb2 as pb
from orca_worker import ranks as ranks_module
from orca_worker.errors import FaultError
from orca_worker.model_config import load_digest
from orca_worker.rank_start import RankStart
from orca_worker.rank_starter import RankStarter
from orca_worker.ranks import Ranks, rank_starts
from support.engines import engine_over, topology
from support.served import descendants
from support.variants import one_short

SCRIPT = Path(__file__).parents[1] / "support" / "scripted_rank.py"
MODEL = Path(__file__).parents[2] / "examples" / "demo-model"


def request(**changes: Any) -> pb.LoadRequest:
    fields = {
        "model_path": str(MODEL),
        "pipeline_parallel_size": 1,
        "tensor_parallel_size": 2,
        "device": "cpu",
        "workers_on_host": 1,
    }
    return pb.LoadRequest(**{**fields, **changes})


async def nothing_asked(_: pb.RendezvousRequest) -> pb.RendezvousReply:
    raise AssertionError("a scripted rank meets nobody")


@contextlib.asynccontextmanager
async def scripted(starts: list[RankStart]) -> AsyncIterator[tuple[Ranks, list[pb.Fault]]]:
    faults: list[pb.Fault] = []
    ranks = await Ranks.spawn(starts, 0, RankStarter(lambda _: None, faults.append, nothing_asked))
    try:
        yield ranks, faults
    finally:
        await ranks.end()


def command(**script: object) -> tuple[str, ...]:
    return (sys.executable, str(SCRIPT), json.dumps(script))


async def loaded_bytes(ranks: Ranks) -> list[int]:
    """Load the demo model; return the reported bytes."""
    return [progress.loaded_bytes async for progress in ranks.load(request(), load_digest(request()))]


def pids(ranks: Ranks) -> list[int]:
    return [process._process.pid for process in ranks._processes]


def test_the_next_load_of_the_same_kind_keeps_the_processes():
    """Whatever the model, its partition and its limits are; the old object has none any more."""

    async def run() -> None:
        async with scripted(rank_starts(request(), command())) as (ranks, faults):
            before = pids(ranks)
            other = request(model_path="/another", partition=2, pipeline_parallel_size=3, max_model_len=7)
            kept = await ranks.keep(rank_starts(other, command()))
            assert kept is not None
            try:
                assert (pids(kept), pids(ranks), faults) == (before, [], [])
                ready = await kept.ask(pb.RankCommand(prepare=pb.PrepareRequest(epoch=3)), 100)
                assert [reply.prepared.epoch for reply in ready] == [3, 3]
            finally:
                await kept.end()

    asyncio.run(run())


@pytest.mark.parametrize(
    "changes",
    [
        {"tensor_parallel_size": 1},
        {"environment": {"OMP_WAIT_POLICY": "passive"}},
        {"socket_interface": "lo"},
        {"device": "cuda"},
    ],
    ids=["size", "environment", "interface", "device"],
)
def test_another_kind_of_load_needs_new_processes(changes):
    async def run() -> None:
        async with scripted(rank_starts(request(), command())) as (ranks, _):
            assert await ranks.keep(rank_starts(request(**changes), command())) is None

    asyncio.run(run())


def test_torch_does_not_end_a_rank_that_has_lost_another_over_nccl():
    """Neither the watchdog, nor its monitor, nor the signal of another rank's monitor."""
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT")

    def values(**changes: Any) -> list[list[str | None]]:
        return [[start.environment.get(name) for name in names] for start in rank_starts(request(**changes), command())]

    assert values() == [[None, None, None]] * 2
    assert values(communication_backend="nccl") == [["0", "0", "0"]] * 2
    given = {names[0]: "3", names[1]: "1"}
    assert values(communication_backend="nccl", environment=given) == [["3", "1", "0"]] * 2


def test_each_device_has_its_own_process():
    starts = rank_starts(request(device="cuda", first_device=2), command())
    assert [start.device for start in starts] == ["cuda:2", "cuda:3"]
    assert starts != rank_starts(request(device="cuda", first_device=0), command())


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_rank_is_not_kept(victim):
    async def run() -> None:
        starts = rank_starts(request(), command())
        async with scripted(starts) as (ranks, _):
            os.kill(pids(ranks)[victim], signal.SIGKILL)
            assert await ranks.keep(starts) is None

    asyncio.run(run())


def test_a_stuck_rank_is_not_kept(monkeypatch):
    """It is killed after a bound, so that a load never waits for an iteration whose neighbour is gone."""

    async def run() -> None:
        starts = rank_starts(request(), command(silent="unload"))
        async with scripted(starts) as (ranks, faults):
            monkeypatch.setattr(ranks_module, "UNLOAD_SECONDS", 0.2)
            assert await ranks.keep(starts) is None
            assert "did not reply to unload within" in faults[0].message
            with pytest.raises(FaultError):
                await ranks.ask(pb.RankCommand(prepare=pb.PrepareRequest(epoch=1)), 100)

    asyncio.run(run())


@pytest.mark.parametrize("number", one_short([signal.SIGKILL, signal.SIGSTOP]), ids=lambda number: number.name)
def test_only_a_rank_that_has_failed_is_replaced(monkeypatch, number):
    """The other rank stays with its model; only the new rank loads."""
    monkeypatch.setattr(ranks_module, "PING_SECONDS", 1.0)

    async def run() -> None:
        starter = RankStarter(lambda _: None, lambda _: None, nothing_asked)
        ranks = await Ranks.spawn(rank_starts(request(), command(reads=[100, 300])), 0, starter)
        try:
            assert (await loaded_bytes(ranks))[-2:] == [200, 0]
            assert ranks.loaded
            first, second = pids(ranks)
            os.kill(second, number)
            await ranks.ping()
            assert ranks.failed
            assert not ranks.loaded
            await ranks.replace_failed(0, starter)
            assert pids(ranks)[0] == first
            assert pids(ranks)[1] != second
            assert not ranks.failed
            assert await loaded_bytes(ranks) == [300, 0]
            assert ranks.loaded
        finally:
            await ranks.end()

    asyncio.run(run())


async def tokens(model: Path, addresses: list[str], prompts: list[tuple[int, ...]], config: EngineConfig) -> list[Any]:
    """Return the tokens of an engine that leaves its workers alive."""
    async with engine_over(topology(model, addresses), config) as harness:
        for index, prompt in enumerate(prompts):
            harness.submit(str(index), prompt, 12)
        collected = await harness.collect(len(prompts))
    return [collected[str(index)] for index in range(len(prompts))]


@pytest.mark.long
def test_kept_ranks_generate_what_new_ones_do(checkpoint, references, worker_pool):
    """Two partitions serve one model after another, with pools of other sizes, and the first one again."""
    names = ("llama-gqa-tied", "gpt2-head64-tied", "qwen3-gqa-tied", "llama-gqa-tied")
    slots = (None, 1024, 2048, 512)

    addresses = worker_pool.addresses(2)
    seen = set()
    for name, kv_slots in zip(names, slots, strict=True):
        expected = references(name, (1, 33), 12)
        config = EngineConfig(max_batch_size=4, kv_slots=kv_slots)
        prompts = [reference.prompt for reference in expected]
        got = asyncio.run(tokens(checkpoint(name), addresses, prompts, config))
        assert got == [reference.greedy for reference in expected]
        seen.add(frozenset(pid for address in addresses for pid in descendants(worker_pool.pid(address))))
    assert len(seen) == 1, "the processes stayed"
    assert len(next(iter(seen))) == 2


def test_one_model_serves_with_other_limits(checkpoint, references, worker_pool):
    """A new master over loaded workers: the pools are sized anew, also to fewer blocks and to more."""

    (expected,) = references("gpt2-head64-tied", (33,), 12)
    for kv_slots in (1024, 64, 4096):
        config = EngineConfig(max_batch_size=2, kv_slots=kv_slots, token_budget=kv_slots)
        path = checkpoint("gpt2-head64-tied")
        got = asyncio.run(tokens(path, worker_pool.addresses(1), [expected.prompt], config))
        assert got == [expected.greedy]


def test_the_memory_of_the_model_before_is_returned(checkpoint, worker_pool):
    """Pools of half a gigabyte are gone when a model with small pools stands."""
    (address,) = worker_pool.addresses(1)

    def mebibytes(name: str, kv_slots: int) -> int:
        config = EngineConfig(max_batch_size=2, kv_slots=kv_slots)
        asyncio.run(tokens(checkpoint(name), [address], [(1, 2)], config))
        (rank,) = descendants(worker_pool.pid(address))
        match = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{rank}/status").read_text())
        assert match is not None
        return int(match[1]) >> 10

    large = mebibytes("gpt2-head64-tied", 16 * 6_000)
    small = mebibytes("llama-gqa-tied", 16 * 50)
    assert large - small > 400, (large, small)
