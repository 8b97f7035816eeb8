"""The controller over gRPC, whose ranks follow a script: late answers, silence, faults on their way to the master."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import grpc
import grpc.aio
import pytest
from orca_contract.message import VERSION
from orca_master.engine.worker_connection import WorkerConnection
from orca_protos import deadlines, faults
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerStub
from orca_protos.wire import EPOCH_KEY
from orca_worker import ranks as ranks_module
from orca_worker.controller import Controller
from orca_worker.model_check import check_model
from support.controllers import MODEL, SCRIPT, form, load, load_request, workers
from support.variants import one_short


def rank_pids(controller: Controller) -> list[int]:
    return [rank._process.pid for rank in controller._ranks._processes]


async def fault_at_end(stream: Any) -> pb.Fault:
    """Return the fault with which a stream ends; faults on the way do not end it."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        if (fault := faults.from_error(error)) is not None:
            return fault
    raise AssertionError("the stream ended without a fault")


def test_a_question_to_the_rendezvous_ends_with_its_epoch(tmp_path):
    """Partition 1's rank waits for a key of epoch 1; it hears that the epoch is over, and prepares the next one."""

    async def run() -> None:
        async with workers(tmp_path, {}, {"asks": "a key"}) as (controllers, stubs):
            for partition, stub in enumerate(stubs):
                await load(stub, load_request(partition, 2))
                await stub.Prepare(pb.PrepareRequest(epoch=1))
            (pid,) = rank_pids(controllers[1])
            request = pb.FormRequest(
                epoch=1, world_size=2, rendezvous_host=f"unix:{tmp_path}/0.sock", group_timeout_ms=100_000
            )
            forming = asyncio.ensure_future(stubs[1].Form(request))
            while not controllers[0].epoch.rendezvous._num_waiting:
                await asyncio.sleep(0.01)
            for stub in reversed(stubs):  # the side that asks closes its channel before the host ends the wait
                assert (await stub.Prepare(pb.PrepareRequest(epoch=2))).epoch == 2
            with pytest.raises(grpc.aio.AioRpcError, match="the rendezvous of epoch 1 is over"):
                await forming
            assert rank_pids(controllers[1]) == [pid]

    asyncio.run(run())


@pytest.mark.parametrize("answers", [2, 3])
def test_a_late_answer_is_nobody_elses(tmp_path, answers):
    """The master gives a Prepare up; its answer comes together with those to the next Prepare and Form."""

    async def run() -> None:
        async with workers(tmp_path, {}) as (controllers, (stub,)):
            await load(stub, load_request())
            # From here on the rank answers when `answers` commands have come.
            (rank,) = controllers[0]._ranks._processes
            held: list[pb.RankReply] = []
            take = rank._connection._take

            def hold(reply: pb.RankReply) -> None:
                held.append(reply)
                if len(held) == answers - 1:
                    rank._connection._take = take
                    for one in held:
                        take(one)

            rank._connection._take = hold
            given_up = stub.Prepare(pb.PrepareRequest(epoch=1))
            while not held:
                await asyncio.sleep(0.01)
            given_up.cancel()
            if answers == 3:
                again = stub.Prepare(pb.PrepareRequest(epoch=2))
                while len(held) < 2:
                    await asyncio.sleep(0.01)
                again.cancel()
            prepared = await stub.Prepare(pb.PrepareRequest(epoch=3))
            assert prepared.epoch == 3
            assert await stub.Form(pb.FormRequest(epoch=3, world_size=1)) == pb.Formed()
            assert (await stub.Warmup(pb.WarmupRequest(max_tokens=77))).num_blocks == 77

    asyncio.run(run())


CALLS = {
    "load": lambda stub: load(stub, load_request()),
    "prepare": lambda stub: stub.Prepare(pb.PrepareRequest(epoch=1)),
    "form": lambda stub: stub.Form(pb.FormRequest(epoch=1, world_size=1)),
    "warmup": lambda stub: stub.Warmup(pb.WarmupRequest(max_tokens=5)),
    "allocate": lambda stub: stub.Allocate(pb.AllocateRequest(num_blocks=5)),
}


@pytest.mark.parametrize(
    "call",
    [
        lambda stub, epoch: stub.Warmup(pb.WarmupRequest(max_tokens=5, epoch=epoch)),
        lambda stub, epoch: stub.Allocate(pb.AllocateRequest(num_blocks=5, epoch=epoch)),
    ],
    ids=["warmup", "allocate"],
)
def test_a_late_call_of_an_earlier_formation_is_rejected(tmp_path, call):
    """The call would overwrite the K/V blocks of the present epoch. Masters of older versions send no epoch."""

    async def run() -> None:
        async with workers(tmp_path, {}) as (_, (stub,)):
            await load(stub, load_request())
            await stub.Prepare(pb.PrepareRequest(epoch=1))
            await stub.Prepare(pb.PrepareRequest(epoch=2))
            with pytest.raises(grpc.aio.AioRpcError, match="epoch 1 was not prepared: the current epoch is 2") as error:
                await call(stub, 1)
            assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            await call(stub, 2)
            await call(stub, 0)

    asyncio.run(run())


def test_a_late_failure_leaves_the_ranks_of_a_newer_load_alone(tmp_path, monkeypatch):
    """A Prepare of a master that was replaced runs into its bound while its successor's engine stands."""

    async def run() -> None:
        monkeypatch.setattr(deadlines, "PREPARE", deadlines.Bound(5.0))
        async with workers(tmp_path, {"silent": "prepare"}) as (controllers, (stub,)):
            await load(stub, load_request())
            late = asyncio.ensure_future(stub.Prepare(pb.PrepareRequest(epoch=1)))
            while not controllers[0].epoch.highest:
                await asyncio.sleep(0.01)
            controllers[0]._loader._rank_command = (sys.executable, str(SCRIPT), "{}")
            request = load_request()
            request.max_model_len = 64
            await load(stub, request)
            await stub.Prepare(pb.PrepareRequest(epoch=2))
            await stub.Form(pb.FormRequest(epoch=2, world_size=1))
            pids = rank_pids(controllers[0])
            with pytest.raises(grpc.aio.AioRpcError):
                await late
            assert rank_pids(controllers[0]) == pids
            assert (await stub.Warmup(pb.WarmupRequest(max_tokens=3))).num_blocks == 3

    asyncio.run(run())


def test_a_load_of_another_model_ends_the_epoch_of_the_one_before(tmp_path):
    """The ranks stay, and the streams of the epoch end, so that no iteration reaches ranks without a model."""

    async def run() -> None:
        async with workers(tmp_path, {}) as (controllers, (stub,)):
            await form(tmp_path, [stub], 1, epoch=4)
            acks = stub.Run(metadata=((EPOCH_KEY, "4"),))
            await acks.write(pb.Iteration(epoch=4, sequence=1))
            pids = rank_pids(controllers[0])
            request = load_request()
            request.max_model_len = 64
            await load(stub, request)
            assert (await fault_at_end(acks)).message == "another model is being loaded"
            assert rank_pids(controllers[0]) == pids
            assert (await stub.Prepare(pb.PrepareRequest(epoch=5))).epoch == 5

    asyncio.run(run())


def test_a_load_reports_the_mean_of_its_ranks_beside_the_bytes_of_the_partition(tmp_path):
    async def run() -> None:
        async with workers(tmp_path, {"reads": [1000, 3000]}) as (_, (stub,)):
            *progress, last = [message async for message in stub.Load(load_request(1, 2, ranks=2))]
            assert [message.loaded_bytes for message in progress][-1] == 2000
            expected = check_model(MODEL, 2, 2, 0, range(1, 2)).num_bytes
            assert {message.total_bytes for message in progress} == {expected}
            assert last.HasField("facts")

    asyncio.run(run())


@pytest.mark.parametrize("digests", [["of other files"] * 2, ["of other files", "of third files"]])
def test_files_that_change_while_they_are_read_end_the_load(tmp_path, digests):
    """As another pod replaces them on a shared volume."""

    async def run() -> None:
        async with workers(tmp_path, {"digests": digests}) as (_, (stub,)):
            with pytest.raises(grpc.aio.AioRpcError, match="files of the model changed while"):
                await load(stub, load_request(1, 2, ranks=2))
            assert (await stub.Describe(pb.DescribeRequest())).loaded_digest == ""

    asyncio.run(run())


def test_a_load_that_ends_while_another_begins_has_loaded_nothing(tmp_path):
    """The rank answers the first load and the unloading at once, and the second load not at all."""

    async def run() -> None:
        async with workers(tmp_path, {"hold": 2}) as (controllers, (stub,)):
            first = asyncio.ensure_future(load(stub, load_request()))
            while not len(controllers[0]._ranks):
                await asyncio.sleep(0.01)
            other = load_request()
            other.max_model_len = 16
            second = asyncio.ensure_future(load(stub, other))
            with pytest.raises(grpc.aio.AioRpcError, match="another load has begun"):
                await first
            assert (await stub.Describe(pb.DescribeRequest())).loaded_digest == ""
            assert not second.done()
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)

    asyncio.run(run())


def test_an_epoch_that_forms_while_another_model_is_loaded_is_refused(tmp_path):
    """The rank's answer to the formation comes with its answer to the unloading."""

    async def run() -> None:
        async with workers(tmp_path, {}) as (controllers, (stub,)):
            await load(stub, load_request())
            await stub.Prepare(pb.PrepareRequest(epoch=1))
            (rank,) = controllers[0]._ranks._processes
            take, held = rank._connection._take, []

            def hold(reply: pb.RankReply) -> None:
                held.append(reply)
                if len(held) == 2:
                    rank._connection._take = take
                    for entry in held:
                        take(entry)

            rank._connection._take = hold
            forming = asyncio.ensure_future(stub.Form(pb.FormRequest(epoch=1, world_size=1)))
            while not held:
                await asyncio.sleep(0.01)
            other = load_request()
            other.max_model_len = 16
            await load(stub, other)
            with pytest.raises(grpc.aio.AioRpcError, match="another load has begun"):
                await forming
            assert controllers[0].epoch.running is None

    asyncio.run(run())


def test_a_rank_that_cannot_be_started_is_a_cause(tmp_path):
    async def run() -> None:
        async with workers(tmp_path, {}) as (controllers, (stub,)):
            controllers[0]._loader._rank_command = (str(tmp_path / "nothing"),)
            with pytest.raises(grpc.aio.AioRpcError, match="cannot start a rank process") as error:
                await load(stub, load_request())
            assert faults.from_error(error.value).kind == pb.FAULT_KIND_CAUSE

    asyncio.run(run())


@pytest.mark.parametrize("silent", one_short(CALLS))
def test_a_silent_rank_ends_and_the_next_load_starts_another(tmp_path, monkeypatch, silent):
    async def run() -> None:
        async with workers(tmp_path, {"silent": silent}) as (controllers, (stub,)):
            for kind, call in CALLS.items():
                if kind != silent:
                    await call(stub)
                    continue
                bound = deadlines.Bound(0.5 if kind != "load" else 3.0)
                for name in ("PREPARE", "ALLOCATE"):
                    monkeypatch.setattr(deadlines, name, bound)
                for name in ("form", "warmup"):
                    monkeypatch.setattr(deadlines, name, lambda _, bound=bound: bound)
                monkeypatch.setattr(ranks_module, "LOAD_SILENCE", bound)
                pids = rank_pids(controllers[0])
                with pytest.raises(grpc.aio.AioRpcError, match=f"rank 0 did not reply to {kind} within") as error:
                    await call(stub)
                break
            assert error.value.code() is grpc.StatusCode.ABORTED
            fault = faults.from_error(error.value)
            assert (fault.kind, fault.tensor_rank) == (pb.FAULT_KIND_CAUSE, 0)
            description = await stub.Describe(pb.DescribeRequest())
            assert (description.loaded_digest, description.contract_version) == ("", VERSION)
            monkeypatch.undo()
            controllers[0]._loader._rank_command = (sys.executable, str(SCRIPT), "{}")
            assert (await load(stub, load_request())).digest
            assert not set(pids) & set(rank_pids(controllers[0]))
            for pid in pids:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)

    asyncio.run(run())


@pytest.mark.parametrize("victim", one_short([0, 1, 2]))
def test_the_cause_reaches_the_master_through_either_stream(tmp_path, victim):
    """Origin, kind and epoch as the controller of the killed rank saw them, however many partitions lie between."""

    async def run() -> None:
        async with workers(tmp_path, {}, {}, {}) as (controllers, stubs):
            await form(tmp_path, stubs, 1, epoch=4)
            acks = stubs[0].Run(metadata=((EPOCH_KEY, "4"),))
            results = stubs[-1].Results(pb.ResultsRequest(epoch=4))
            await acks.write(pb.Iteration(epoch=4, sequence=1))
            assert (await acks.read()).sequence == 1
            os.kill(rank_pids(controllers[victim])[0], signal.SIGKILL)
            ends = [await fault_at_end(stream) for stream in (acks, results)]
            causes = [fault for fault in ends if fault.kind == pb.FAULT_KIND_CAUSE]
            assert ends[0] in causes, "the relay forwards it unchanged"
            assert victim < 2 or ends[1] in causes
            for fault in causes:
                assert (fault.epoch, fault.partition, fault.tensor_rank) == (4, victim, 0)
                assert fault.message == "rank 0 ended: killed by SIGKILL"

    asyncio.run(run())


def test_a_fault_while_the_first_ack_is_sent_ends_the_stream(tmp_path):
    """The Ack is longer than the window of a caller that does not read yet, so that its write is in progress."""

    async def run() -> None:
        async with workers(tmp_path, {}) as ((controller,), stubs):
            await form(tmp_path, stubs, 1, epoch=4)
            fixed_window = [("grpc.http2.bdp_probe", 0)]
            async with grpc.aio.insecure_channel(f"unix:{tmp_path}/0.sock", options=fixed_window) as channel:
                acks = WorkerStub(channel).Run(metadata=((EPOCH_KEY, "4"),))
                while not controller.num_streams:
                    await asyncio.sleep(0.01)
                epoch = controller.epoch.running
                assert epoch is not None
                complaint = pb.Fault(message="long" * 2**18, kind=pb.FAULT_KIND_CONSEQUENCE)
                epoch.acks.put_nowait(pb.Ack(epoch=4, fault=complaint))
                while not epoch.acks.empty():
                    await asyncio.sleep(0)
                epoch.end(pb.Fault(message="a fault", kind=pb.FAULT_KIND_CAUSE, epoch=4))
                assert (await fault_at_end(acks)).message == "a fault"

    asyncio.run(run())


@pytest.mark.parametrize("victim", one_short([1, 0]))
@pytest.mark.parametrize("partition", one_short([0, 1]))
def test_a_complaint_before_the_cause_leaves_room_for_it(tmp_path, partition, victim):
    """Two ranks in each of two partitions: one complains of its neighbour, whose end is noticed later."""

    async def run() -> None:
        scripts: list[dict[str, object]] = [{}, {}]
        scripts[partition] = {"complains": 1 - victim}
        async with workers(tmp_path, *scripts) as (controllers, stubs):
            await form(tmp_path, stubs, 2, epoch=4)
            acks = stubs[0].Run(metadata=((EPOCH_KEY, "4"),))
            await acks.write(pb.Iteration(epoch=4, sequence=1))
            while not (ack := await acks.read()).HasField("fault"):
                pass
            assert ack.fault.kind == pb.FAULT_KIND_CONSEQUENCE
            assert (ack.fault.partition, ack.fault.tensor_rank) == (partition, 1 - victim)
            os.kill(rank_pids(controllers[partition])[victim], signal.SIGKILL)
            fault = await fault_at_end(acks)
            assert fault.kind == pb.FAULT_KIND_CAUSE
            assert (fault.partition, fault.tensor_rank) == (partition, victim)

    asyncio.run(run())


def test_the_cause_of_a_cold_call_is_preferred(tmp_path):
    """One rank's consequence comes first; the other one's end is the answer to the call."""

    async def run() -> None:
        async with workers(tmp_path, {"silent": "form"}) as (controllers, (stub,)):
            await load(stub, load_request(ranks=2))
            await stub.Prepare(pb.PrepareRequest(epoch=1))
            forming = asyncio.ensure_future(stub.Form(pb.FormRequest(epoch=1, world_size=2)))
            ranks = controllers[0]._ranks._processes
            while not all(rank._waiting for rank in ranks):
                await asyncio.sleep(0.01)
            complaint = pb.Fault(message="lost", kind=pb.FAULT_KIND_CONSEQUENCE, epoch=1, tensor_rank=0)
            ranks[0]._take(pb.RankReply(fault=complaint))
            os.kill(rank_pids(controllers[0])[1], signal.SIGKILL)
            with pytest.raises(grpc.aio.AioRpcError, match="rank 1 ended: killed by SIGKILL"):
                await forming

    asyncio.run(run())


def test_every_bound_of_a_worker_lies_below_the_masters(tmp_path):
    """As both apply them: the deadline of each call, and how long the controller waits for its ranks."""
    worker: dict[str, float] = {}
    master: dict[str, float] = {}
    names = {"ChangeAdapters": "change_adapters"}

    class Ranks:
        starts = ()

        def __len__(self) -> int:
            return 1

        async def ask(self, command: pb.RankCommand, timeout: float) -> list[pb.RankReply]:
            kind = command.WhichOneof("command")
            worker[kind] = timeout
            return [pb.RankReply(warmed_up=pb.WarmedUp(num_blocks=1))]

        async def end(self) -> None:
            pass

    class Stub:
        """Notes the deadlines of calls, and passes them on to `controller`."""

        def __init__(self, controller: Controller) -> None:
            self._controller = controller

        def __getattr__(self, name: str) -> Any:
            def call(request: Any, timeout: float) -> Any:
                master[names.get(name, name.lower())] = timeout
                return getattr(self._controller, name)(request, None)

            return call

    async def run() -> None:
        controller = Controller()
        controller._loader.ranks = Ranks()
        connection = WorkerConnection(f"unix:{tmp_path}/none.sock")
        connection._stub = Stub(controller)
        await connection.prepare(pb.PrepareRequest(epoch=1))
        await connection.form(pb.FormRequest(epoch=1, world_size=1, group_timeout_ms=300_000))
        await connection.warmup(pb.WarmupRequest(max_tokens=1, timeout_ms=300_000))
        await connection.allocate(pb.AllocateRequest(num_blocks=1))
        controller.epoch.highest = 1
        await connection.change_adapters(pb.ChangeAdaptersRequest(epoch=1, timeout_ms=600_000))
        await connection.close()

    asyncio.run(run())
    assert set(worker) == set(master) == {"prepare", "form", "warmup", "allocate", "change_adapters"}
    assert worker["change_adapters"] == 600 + deadlines.ADAPTER_COPY_SECONDS, "it waits behind iterations"
    worker["change_adapters"] += deadlines.ADAPTER_FILES_SECONDS
    for name, bound in worker.items():
        assert bound + deadlines.MARGIN_SECONDS <= master[name]
    assert worker["form"] > 300, "the ranks' own bound for each other lies below"
    assert worker["warmup"] >= 300
    assert deadlines.LOAD_SILENCE.worker < deadlines.LOAD_SILENCE.master
    assert deadlines.COLD_FAULTS_SECONDS < deadlines.FAULTS_SECONDS
    assert deadlines.COLD_FAULTS_SECONDS < deadlines.MARGIN_SECONDS
