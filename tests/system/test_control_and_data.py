"""Control messages and tensors travel apart (the paper, section 4.1), shown on two real workers."""

from __future__ import annotations

import asyncio
import json

import pytest
from orca_master.engine.config import EngineConfig
from orca_master.engine.pipeline import Pipeline
from orca_protos import engine_pb2 as pb
from support.engines import topology, worker_processes
from support.instrumented_worker import command

HIDDEN = 128
CHUNKS = (7, 1, 1)


def iteration(epoch: int, sequence: int, context: int, count: int) -> pb.Iteration:
    return pb.Iteration(
        epoch=epoch, sequence=sequence, row=[0], num_tokens=[count], context_length=[context],
        token=range(1, 1 + count), num_new_blocks=[1 if context == 0 else 0], new_block=[0] if context == 0 else [],
        sample=[True], admission=[pb.Admission(row=0)] if context == 0 else [],
    )  # fmt: skip


@pytest.mark.long
def test_relay_runs_ahead_of_the_kernel_and_gloo_carries_activations_only(checkpoint, tmp_path):
    """Partition 0's kernel is released only after controller 1 has acknowledged the same iteration."""
    folders = [tmp_path / str(partition) for partition in range(2)]
    for folder in folders:
        folder.mkdir()
    workers = {partition: command("watched_rank.py", str(folder)) for partition, folder in enumerate(folders)}

    async def run() -> None:
        spec = topology(checkpoint("gpt2-head64-tied"), addresses)
        pipeline = Pipeline(spec.pipelines[0], spec, EngineConfig(max_batch_size=4, token_budget=None))
        await pipeline.form(lambda _: None)
        try:
            for folder in folders:
                (folder / "calls.jsonl").unlink(missing_ok=True)
            epoch, context = pipeline.epoch, 0
            for sequence, count in enumerate(CHUNKS, start=1):
                (folders[0] / "armed").touch()
                await pipeline._run.write(iteration(epoch, sequence, context, count))
                ack = await pipeline._run.read()
                assert (ack.epoch, ack.sequence) == (epoch, sequence)
                description = await pipeline._connections[1].describe(10)
                assert description.last_sequence == sequence
                assert not (folders[0] / "calls.jsonl").exists() or len(calls(0)) == sequence - 1
                (folders[0] / "release").touch()
                result = await pipeline._results.read()
                assert (result.sequence, len(result.token)) == (sequence, 1)
                (folders[0] / "armed").unlink()
                (folders[0] / "release").unlink()
                context += count
        finally:
            await pipeline.shutdown("the test ends")

    def calls(partition: int) -> list:
        return [json.loads(line) for line in (folders[partition] / "calls.jsonl").read_text().splitlines()]

    with worker_processes(2, workers) as (addresses, _):
        asyncio.run(asyncio.wait_for(run(), 120))
    activations = [[[count, HIDDEN], "torch.float32"] for count in CHUNKS]
    assert calls(0) == [["isend", [shape]] for shape in activations]
    assert calls(1) == [["irecv", [shape]] for shape in activations]


def test_messages_of_another_epoch_and_gaps_are_refused(checkpoint, worker_pool):
    async def run() -> None:
        spec = topology(checkpoint("gpt2-head64-tied"), addresses)
        pipeline = Pipeline(spec.pipelines[0], spec, EngineConfig(max_batch_size=4, token_budget=None))
        await pipeline.form(lambda _: None)
        worker = pipeline._connections[0]
        for older in (pipeline.epoch, pipeline.epoch - 1):
            with_error = await failure(worker.prepare(pb.PrepareRequest(epoch=older)))
            assert f"epoch {older} is over" in with_error
        assert "was not prepared" in await failure(worker.form(pb.FormRequest(epoch=pipeline.epoch + 1)))
        stale = worker.results(pipeline.epoch + 7)
        assert "is not the current one" in await failure(stale.read())
        await pipeline._run.write(iteration(pipeline.epoch, 2, 0, 3))
        assert "iteration 2 arrived, 1 is expected" in await failure(pipeline._run.read())
        await pipeline.close()

    addresses = worker_pool.addresses(1)
    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_new_formation_keeps_weights_and_rises_above_every_epoch_seen(checkpoint, worker_pool):
    """A restarted master finds the worker loaded: the same boot, the same digest, a higher epoch."""

    async def run() -> None:
        spec = topology(checkpoint("gpt2-head64-tied"), addresses)
        seen = []
        for _ in range(2):
            pipeline = Pipeline(spec.pipelines[0], spec, EngineConfig(max_batch_size=4, token_budget=None))
            await pipeline.form(lambda _: None)
            await pipeline._run.write(iteration(pipeline.epoch, 1, 0, 3))
            result = await pipeline._results.read()
            seen.append((await pipeline._connections[0].describe(10), list(result.token)))
            await pipeline.close()
        (first, tokens), (second, tokens_again) = seen
        assert first.boot_id == second.boot_id
        assert first.loaded_digest == second.loaded_digest != ""
        assert second.highest_epoch == first.highest_epoch + 1
        assert tokens == tokens_again

    addresses = worker_pool.addresses(2)
    asyncio.run(asyncio.wait_for(run(), 60))


async def failure(call) -> str:
    try:
        await call
    except Exception as error:
        return str(error)
    raise AssertionError("it was not refused")
