"""Served models run their increments from recordings, on whatever processor runs the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from orca_master.engine.config import EngineConfig
from support.engines import engine_over, topology
from support.worker_pool import WorkerPool


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the address of a worker, and the file of what it and its rank log."""
    path = tmp_path_factory.mktemp("recording") / "log"
    with path.open("w") as log:
        pool = WorkerPool(log)
        yield pool.addresses(1)[0], path
        pool.close()


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["gpt2-head64-tied", "llama-gqa-tied"])
def test_no_model_says_that_it_could_not_be_recorded(checkpoint, worker, variant, dtype):
    address, log = worker
    spec = topology(checkpoint(variant), [address])
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": dtype})})

    async def run() -> dict[str, list[int]]:
        async with engine_over(spec, EngineConfig()) as harness:
            for name, prompt in (("three", (1, 2, 3)), ("one", (4,))):
                harness.submit(name, prompt, 8)
            return await harness.collect(2)

    assert [len(tokens) for tokens in asyncio.run(run()).values()] == [8, 8]
    assert not [line for line in log.read_text().splitlines() if "recorded" in line]
