"""Of all that the workers of a pipeline report, the cause is what the master reports, in whatever order it hears."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from orca_master.engine import faults as faults_module
from orca_master.engine.faults import Evidence, FaultCollector, WorkerLostError, all_workers, closest, lost_worker
from orca_master.errors import ConfigurationError
from orca_protos import engine_pb2 as pb

ADDRESSES = ["a:1", "b:1", "c:1"]
CAUSE = pb.Fault(message="killed", kind=pb.FAULT_KIND_CAUSE, partition=1, tensor_rank=1, out_of_memory=True)
LOST = pb.Fault(message="lost its neighbour", kind=pb.FAULT_KIND_CONSEQUENCE, partition=0, tensor_rank=0)
GONE = pb.Fault(message="is gone", kind=pb.FAULT_KIND_CONSEQUENCE, partition=2)
ALL = [CAUSE, LOST, GONE]


def error_of(fault: pb.Fault) -> WorkerLostError:
    return lost_worker(fault, ADDRESSES[fault.partition])


async def fail(error: Exception, after: asyncio.Event, done: asyncio.Event) -> None:
    await after.wait()
    done.set()
    raise error


@pytest.mark.parametrize("order", list(itertools.permutations(ALL)))
def test_the_cause_among_the_reports_of_streams(order, monkeypatch):
    monkeypatch.setattr(faults_module, "FAULTS_SECONDS", 1000.0)

    async def run() -> None:
        collector = FaultCollector(ranks_per_worker=2)
        stream = asyncio.create_task(asyncio.Event().wait())  # it never ends
        settled = asyncio.create_task(collector.settle([stream]))
        for fault in order:
            await asyncio.sleep(0)
            assert not settled.done() or CAUSE in order[: order.index(fault)]
            collector.report(error_of(fault), fault)
        await asyncio.wait_for(settled, 60)
        lost = closest(collector.errors)
        assert (str(lost), lost.reason, lost.worker) == ("worker b:1: killed", "WorkerOOMKilled", "b:1")
        stream.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("order", list(itertools.permutations(ALL)))
def test_the_cause_among_the_answers_to_a_cold_call(order, monkeypatch):
    """Every call fails when the one before it in `order` has; the cause ends the wait for the rest."""
    monkeypatch.setattr(faults_module, "FAULTS_SECONDS", 1000.0)

    async def run() -> None:
        gates = [asyncio.Event() for _ in range(len(order) + 1)]
        gates[0].set()
        calls = [fail(error_of(fault), gates[index], gates[index + 1]) for index, fault in enumerate(order)]
        with pytest.raises(WorkerLostError, match="worker b:1: killed") as error:
            await asyncio.wait_for(all_workers(calls), 60)
        assert error.value.reason == "WorkerOOMKilled"

    asyncio.run(run())


def test_without_a_cause_the_wait_is_bounded(monkeypatch):
    monkeypatch.setattr(faults_module, "FAULTS_SECONDS", 0.01)

    async def run() -> None:
        now, never = asyncio.Event(), asyncio.Event()
        now.set()
        calls = [fail(error_of(LOST), now, asyncio.Event()), fail(error_of(CAUSE), never, asyncio.Event())]
        with pytest.raises(WorkerLostError, match="worker a:1: lost its neighbour"):
            await asyncio.wait_for(all_workers(calls), 60)
        collector = FaultCollector(ranks_per_worker=2)
        collector.report(error_of(LOST), LOST)
        stream = asyncio.create_task(asyncio.Event().wait())
        await asyncio.wait_for(collector.settle([stream]), 60)
        stream.cancel()

    asyncio.run(run())


def lost(rank: int, *others: int) -> pb.Fault:
    """Return the report of rank `rank` of three partitions with two ranks each that it has lost one of `others`."""
    partition, tensor_rank = divmod(rank, 2)
    kind = pb.FAULT_KIND_CONSEQUENCE
    return pb.Fault(message="lost", kind=kind, partition=partition, tensor_rank=tensor_rank, lost_rank=others)


@pytest.mark.parametrize(
    "reports",
    [
        [lost(2, 4), lost(3, 2), lost(5, 3), lost(4, 2)],
        [lost(2, 3), lost(3, 2)],
        [GONE, *[lost(rank, (rank + 2) % 6) for rank in range(6)]],
    ],
    ids=["between-two-partitions", "in-a-partition", "everywhere"],
)
def test_no_cause_is_waited_for_once_every_lost_rank_has_lost_another(reports, monkeypatch):
    """As when data connections are cut. Ranks that computed nothing, and notice nothing, are not waited for."""
    monkeypatch.setattr(faults_module, "FAULTS_SECONDS", 1000.0)

    async def run() -> None:
        collector = FaultCollector(ranks_per_worker=2)
        stream = asyncio.create_task(asyncio.Event().wait())
        settled = asyncio.create_task(collector.settle([stream]))
        for fault in [*reports[:-1], *reports[:-1]]:
            collector.report(error_of(fault), fault)
            await asyncio.sleep(0)
        assert not settled.done()
        collector.report(error_of(reports[-1]), reports[-1])
        await asyncio.wait_for(settled, 60)
        stream.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    "reports",
    [
        [lost(0, 2), lost(3, 2), lost(4, 2), lost(5, 3)],
        [lost(3, 2), lost(2, 1), lost(1, 0)],
        [lost(2), lost(3)],
        [lost(2, 3), lost(3)],
    ],
    ids=["a-dead-rank", "a-chain", "unknown", "one-unknown"],
)
def test_the_cause_is_waited_for_while_a_lost_rank_is_silent(reports, monkeypatch):
    """Whichever report comes first; a worker of an older version does not name the lost rank."""
    monkeypatch.setattr(faults_module, "FAULTS_SECONDS", 1000.0)

    async def run() -> None:
        collector = FaultCollector(ranks_per_worker=2)
        stream = asyncio.create_task(asyncio.Event().wait())
        settled = asyncio.create_task(collector.settle([stream]))
        for fault in reports:
            collector.report(error_of(fault), fault)
            await asyncio.sleep(0)
        assert not settled.done()
        settled.cancel()
        stream.cancel()

    asyncio.run(run())


def test_without_a_cause_a_controller_that_is_gone_is_closest():
    assert str(closest([error_of(LOST), error_of(GONE), error_of(GONE)])) == "worker c:1: is gone"
    assert closest([error_of(LOST), error_of(LOST)]).evidence is Evidence.CONSEQUENCE


def test_what_the_user_must_change_is_reported_at_once():
    async def run() -> None:
        now, never = asyncio.Event(), asyncio.Event()
        now.set()
        calls = [fail(ConfigurationError("it does not fit"), now, never), fail(error_of(LOST), now, never)]
        with pytest.raises(ConfigurationError, match="it does not fit"):
            await asyncio.wait_for(all_workers(calls), 60)

    asyncio.run(run())
