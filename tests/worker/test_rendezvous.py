"""The values by which ranks find each other: bounded, of one epoch, and torch's process groups over them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import grpc.aio
import pytest
import torch.distributed as dist
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from orca_worker import rendezvous as module
from orca_worker.controller import Controller
from orca_worker.errors import RendezvousError
from orca_worker.rendezvous import MAX_KEY_LENGTH, Rendezvous
from orca_worker.rendezvous_store import RendezvousStore


def put(key: str, value: bytes, epoch: int = 7) -> pb.RendezvousRequest:
    return pb.RendezvousRequest(epoch=epoch, key=key, value=value)


def get(key: str, seconds: float = 60.0, epoch: int = 7) -> pb.RendezvousRequest:
    return pb.RendezvousRequest(epoch=epoch, key=key, timeout_ms=int(seconds * 1000))


@contextlib.asynccontextmanager
async def hosted(folder: Path) -> AsyncIterator[tuple[Controller, grpc.aio.Server, grpc.aio.Channel]]:
    """Yield the controller that hosts the values of epoch 7, its server, and a channel to it."""
    host = Controller()
    host.epoch.rendezvous = Rendezvous(7)
    server = grpc.aio.server()
    add_WorkerServicer_to_server(host, server)
    server.add_insecure_port(f"unix:{folder}/host.sock")
    await server.start()
    async with asyncio.timeout(100), grpc.aio.insecure_channel(f"unix:{folder}/host.sock") as channel:
        yield host, server, channel
        await host.close()
        await server.stop(0)


def test_a_value_is_awaited_and_may_be_empty():
    async def run() -> None:
        values = Rendezvous(7)
        waiting = [asyncio.ensure_future(values.exchange(get(key))) for key in ("a", "a", "b")]
        await asyncio.sleep(0)
        await values.exchange(put("a", b"1"))
        await values.exchange(put("b", b""))
        assert [(await each).value for each in waiting] == [b"1", b"1", b""]
        await values.exchange(put("a", b"22"))
        assert (await values.exchange(get("a", 0))).value == b"22"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (get("a", 0.01), "timeout: no rank set 'a' within 0 s"),
        (get("a", epoch=6), "the rendezvous of epoch 6 is over"),
        (put("a", b"", epoch=8), "the rendezvous of epoch 8 is over"),
        (put("k" * (MAX_KEY_LENGTH + 1), b""), "a key of 1025 characters"),
        (put("a", b"x" * 2000), "would take more than"),
    ],
)
def test_what_is_refused(monkeypatch, request_, words):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)

    async def run() -> None:
        with pytest.raises(RendezvousError, match=words):
            await Rendezvous(7).exchange(request_)
        assert words.split("'")[0] in (await Rendezvous(7).ask(request_)).error

    asyncio.run(run())


def test_keys_and_waits_are_bounded_in_number(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 10 * module.KEY_OVERHEAD_BYTES)
    monkeypatch.setattr(module, "MAX_WAITING", 3)

    async def run() -> None:
        values = Rendezvous(7)
        for number in range(9):
            await values.exchange(put(str(number), b""))
            await values.exchange(put(str(number), b"y"))
        with pytest.raises(RendezvousError, match="would take more than"):
            await values.exchange(put("another", b""))
        waiting = [asyncio.ensure_future(values.exchange(get("none"))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(RendezvousError, match="more than 3 requests are waiting"):
            await values.exchange(get("none"))
        await values.close()
        for each in waiting:
            with pytest.raises(RendezvousError, match="epoch 7 is over"):
                await each

    asyncio.run(run())


def test_another_partitions_controller_asks_the_host(tmp_path):
    """Over gRPC; the host's refusal, and its silence when it is gone, are words in the answer."""

    async def run() -> None:
        async with hosted(tmp_path) as (host, server, channel):
            other = Rendezvous(7)
            other.pass_on(WorkerStub(channel))
            waiting = asyncio.ensure_future(other.ask(get("a")))
            assert await host.epoch.rendezvous.ask(put("a", b"here")) == pb.RendezvousReply()
            assert (await waiting).value == b"here"
            assert "no rank set 'b'" in (await other.ask(get("b", 0.01))).error
            waiting = asyncio.ensure_future(other.ask(get("c")))
            await asyncio.sleep(0)
            await host.close()
            assert "partition 0: the rendezvous of epoch 7 is over" in (await waiting).error
            await server.stop(0)
            assert "partition 0: " in (await other.ask(get("c"))).error

    asyncio.run(run())


def test_questions_end_when_the_side_that_asks_is_closed(tmp_path):
    """Those under way and those that come later are answered; only a cancelled caller gets no answer."""

    async def run() -> None:
        async with hosted(tmp_path) as (host, _, channel):
            other, late = Rendezvous(7), Rendezvous(7)
            for each in (other, late):
                each.pass_on(WorkerStub(channel))
            waiting, given_up = (asyncio.ensure_future(other.ask(get("a"))) for _ in range(2))
            while host.epoch.rendezvous._num_waiting < 2:
                await asyncio.sleep(0.01)
            await other.close()
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            await channel.close()
            over = pb.RendezvousReply(error="the rendezvous of epoch 7 is over")
            assert [await waiting, await other.ask(get("a")), await late.ask(get("a"))] == [over, over, over]

    asyncio.run(run())


def test_the_store_of_torch_over_it():
    """From a thread, as a rank does; `check` waits for nothing, and everything that ORCA does not need is refused."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    values = asyncio.run_coroutine_threadsafe(made(), loop).result()

    def ask(request: pb.RendezvousRequest) -> pb.RendezvousReply:
        return asyncio.run_coroutine_threadsafe(values.ask(request), loop).result()

    store = RendezvousStore(7, ask, datetime.timedelta(seconds=60))
    prefixed = dist.PrefixStore("group", store)  # C++ that calls the Python methods
    assert not prefixed.check(["a"])
    prefixed.set("a", "text")
    prefixed.wait(["a"])
    assert (prefixed.get("a"), prefixed.check(["a"])) == (b"text", True)
    hasty = RendezvousStore(7, ask, datetime.timedelta(milliseconds=1))
    with pytest.raises(RuntimeError, match="no rank set 'group/b'"):
        dist.PrefixStore("group", hasty).wait(["b"], datetime.timedelta(milliseconds=1))
    assert (prefixed.add("counter", 2), prefixed.add("counter", -3)) == (2, -1)
    with pytest.raises(RuntimeError, match="the value of 'group/a' is no number"):
        prefixed.add("a", 1)
    with pytest.raises(RuntimeError):
        prefixed.delete_key("a")
    with ThreadPoolExecutor(2) as ranks:  # what symmetric memory does: each rank's value, and a barrier
        assert (
            list(ranks.map(lambda rank: meet(dist.PrefixStore("group", store), rank), range(2))) == [[b"0", b"1"]] * 2
        )
    loop.call_soon_threadsafe(loop.stop)


def meet(store: dist.Store, rank: int) -> list[bytes]:  # type: ignore[name-defined]
    """Exchange a value with the other rank, and return when it has come, too."""
    store.set(f"meet/{rank}", str(rank))
    values = store.multi_get(["meet/0", "meet/1"])
    store.add("meet/barrier", 1)
    store.wait(["meet/0", "meet/1"])
    return [bytes(value) for value in values]


async def made() -> Rendezvous:
    return Rendezvous(7)
