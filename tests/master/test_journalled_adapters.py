"""Requests of adapters that were loaded at run time: what the journal has of them, and how the next master goes on."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from orca_contract.state import EngineState
from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.endpoint import restored_adapters
from orca_master.endpoint.generation import Generator
from orca_master.endpoint.restored_adapters import RestoredAdapters
from orca_master.endpoint.resumable import ResumableRequests
from orca_master.endpoint.resumable_request import ResumableRequest
from orca_master.endpoint.served_models import ServedModels
from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.errors import EngineError, EngineUnavailableError, ModelNotFoundError, RequestError
from orca_master.journal import records
from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted, AdapterFiles
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.adapter_restorer import FILES, Restorer
from support.idle_engine import Idle

MODEL = "/models/m"
SECONDS = 60.0


def generator_over(engine: Idle, folder: Path) -> Generator:
    return Generator(engine, TextCodec(folder), ServedModels(("m",), ("start",), engine), 1 << 20)


def resumable_over(folder: Path, generator: Generator, adapters: Restorer | None) -> ResumableRequests:
    restored = RestoredAdapters(adapters, lambda: generator.is_stopped)
    return ResumableRequests(Journal(folder / "j", MODEL), generator, SECONDS, restored)


def request(name: str, owner: str = "key", adapter: AdapterFiles | None = FILES) -> Accepted:
    body = {"model": "start" if adapter is None else "loaded"}
    return Accepted(name, "completions", body, [array("I", [5])], 20, None, 1, 1_700, owner, adapter=adapter)


def test_a_record_has_the_files_of_an_adapter_and_no_field_without_one():
    """Records of earlier versions do not have it either."""
    for adapter in (FILES, None):
        made: dict[int, records.JournalledRequest] = {}
        array_of = records.accepted(1, request("a", adapter=adapter))
        assert ("adapter" in array_of[2]) == (adapter is not None)
        records.replay(json.loads(json.dumps(array_of)), made, set(), pb.ModelFacts())
        assert made[1].accepted == request("a", adapter=adapter)
        again: dict[int, records.JournalledRequest] = {}
        written_again = json.loads(json.dumps(records.request(1, made[1])))
        records.replay(written_again, again, set(), pb.ModelFacts())
        assert again[1].accepted == request("a", adapter=adapter)


@pytest.mark.parametrize("adapters", [None, Restorer()], ids=["none at run time", "some"])
def test_a_request_is_recorded_with_what_the_next_master_needs(tmp_path, adapters):
    """Also one of an adapter of the start, which the next master has, but none of an adapter that has left."""

    async def play() -> None:
        engine = Idle((ServedAdapter("loaded", 2, "key"), ServedAdapter("leaving", 3, "key")))
        generator = generator_over(engine, tmp_path)
        resumable = resumable_over(tmp_path, generator, adapters)

        def recorded(model: str) -> Accepted | None:
            body = CompletionRequest(model=model, prompt=[1])
            generation = generator.prepare("cmpl-", body, [[1]], 4, None, owner="key")
            recorder = resumable.accept("completions", body, generation, "key")
            return None if recorder is None else recorder.accepted

        for model in ("m", "start"):
            accepted = recorded(model)
            assert accepted is not None
            assert accepted.adapter is None
        loaded = recorded("loaded")
        assert (None if loaded is None else loaded.adapter) == (None if adapters is None else FILES)
        assert recorded("leaving") is None
        with pytest.raises(ModelNotFoundError, match="'unloaded' does not exist"):
            recorded("unloaded")
        await resumable.close()

    asyncio.run(play())


async def outcome(request: ResumableRequest, generator: Generator) -> str:
    """Return how a client's reading of a request ends: "" for a whole answer."""
    try:
        async for _ in request.pieces(request.generation(generator)):
            pass
    except (EngineError, EngineUnavailableError) as error:
        return str(error)
    return ""


class Master:
    """A master that resumes the requests a, b and c, of which c is of the start, and a and b share files."""

    def __init__(self, folder: Path, adapters: Restorer | None, deadline: float | None = None) -> None:
        journal = Journal(folder / "j", MODEL)
        for entry in (request("a"), request("b"), request("c", adapter=None)):
            journal.accept(replace(entry, deadline=deadline))
        journal.close()
        self.engine = Idle()
        self.generator = generator_over(self.engine, folder)
        self.resumable = resumable_over(folder, self.generator, adapters)
        assert self.resumable.resume(pb.ModelFacts) == 3

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0.001)

    def adapters(self) -> list[int]:
        """Return the adapters of the requests that the engine has, in any order."""
        return sorted(each.adapter for each in self.engine.submitted)

    async def read(self) -> list[str]:
        """Return how the reading of a and b ends."""
        requests = [self.resumable.find(name, "key") for name in ("a", "b")]
        async with asyncio.timeout(SECONDS):
            return await asyncio.gather(*(outcome(each, self.generator) for each in requests if each is not None))


def test_an_adapter_is_loaded_again_once_for_all_of_its_requests(tmp_path, monkeypatch):
    """While no pipeline serves it is tried again; the others do not wait for it. It leaves after its requests."""
    monkeypatch.setattr(restored_adapters, "RETRY_SECONDS", 0.001)

    async def play() -> None:
        adapters = Restorer(*[EngineUnavailableError("no pipeline serves")] * 2)
        master = Master(tmp_path, adapters)
        master.engine.state = EngineState.RECOVERING
        await master.until(lambda: len(master.engine.submitted) == 3)
        assert adapters.calls == [("loaded", "/d/loaded", "key", "abc")] * 3
        assert master.adapters() == [1, 7, 7]
        assert adapters.released == []
        for submission in master.engine.submitted:
            master.engine.finish(submission)
        assert await master.read() == ["", ""]
        await master.until(lambda: adapters.released == [7])
        await master.resumable.close()

    asyncio.run(play())


def test_an_adapter_that_nobody_waits_for_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(restored_adapters, "RETRY_SECONDS", 0.001)

    async def play() -> None:
        restorer = Restorer(*[EngineUnavailableError("no pipeline serves")] * 1000)
        restored, others = RestoredAdapters(restorer, lambda: False), asyncio.all_tasks()

        async def hold() -> None:
            async with restored.held("key", FILES):
                pass

        for _ in range(3):  # a later holder begins anew
            holding, before = asyncio.create_task(hold()), len(restorer.calls)
            while len(restorer.calls) < before + 3:
                await asyncio.sleep(0.001)
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
        while asyncio.all_tasks() > others:
            await asyncio.sleep(0.001)
        assert len(restorer.calls) < 1000

    asyncio.run(asyncio.wait_for(play(), SECONDS))


REFUSED = "the adapter 'loaded' could not be loaded again after the master's end: "


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: Restorer(*[RequestError("lora_path: the files have changed")] * 2),
            "lora_path: the files have changed",
        ),
        (lambda: Restorer(*[ZeroDivisionError("a fault")] * 2), "a fault"),
        (lambda: None, "adapters cannot be loaded while the server runs: start it with --enable-runtime-adapters DIR"),
    ],
)
def test_an_adapter_that_is_refused_ends_its_requests_with_the_reason(tmp_path, make, reason):
    async def play() -> None:
        master = Master(tmp_path, make())
        assert await master.read() == [f"{REFUSED}{reason}"] * 2
        await master.until(lambda: master.adapters() == [1])
        await master.resumable.close()

    asyncio.run(play())


def test_a_deadline_ends_a_request_that_waits_for_its_adapter(tmp_path):
    async def play() -> None:
        adapters = Restorer()
        adapters.gate = asyncio.Event()
        master = Master(tmp_path, adapters, deadline=1_700.0)
        assert await master.read() == [f"{REFUSED}not finished within 0 s"] * 2
        await master.resumable.close()

    asyncio.run(play())


@pytest.mark.parametrize("closes", [False, True])
def test_requests_that_wait_for_an_adapter_are_left_to_the_next_master(tmp_path, closes):
    """When the server stops, their readers hear of it, whether the engine or the server ends first."""

    async def play() -> None:
        adapters = Restorer()
        adapters.gate = asyncio.Event()
        master = Master(tmp_path, adapters)
        await master.until(lambda: bool(adapters.calls))
        reading = asyncio.create_task(master.read())
        await asyncio.sleep(0)
        if not closes:
            master.resumable.interrupt()
        else:
            await master.resumable.close()
        assert await reading == ["the server stops"] * 2
        if not closes:
            await master.resumable.close()

    asyncio.run(play())
    left = Journal(tmp_path / "j", MODEL)
    unfinished = [entry.accepted.request_id for entry in left.requests.values() if entry.ended is None]
    assert unfinished[:2] == ["a", "b"]
    left.close()
