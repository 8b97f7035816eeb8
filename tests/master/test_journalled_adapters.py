"""Requests of adapters that were loaded at run time: what the journal has of them, and how the next master goes on."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.endpoint import resumable as resumable_module
from orca_master.endpoint.generation import Generator
from orca_master.endpoint.resumable import ResumableRequests
from orca_master.endpoint.served_models import ServedModels
from orca_master.engine.adapter_registry import RuntimeAdapter, ServedAdapter
from orca_master.errors import EngineUnavailableError, ModelNotFoundError, RequestError
from orca_master.journal import records
from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted, AdapterFiles
from orca_master.text.tokenizer import TextCodec
from support.idle_engine import Idle

MODEL = "/models/m"
LOADED = RuntimeAdapter("loaded", 2, "key", "/d/loaded", "abc")
FILES = AdapterFiles("loaded", "/d/loaded", "abc")
SECONDS = 60.0


class Adapters:
    """An AdapterRestorer. `answers`: of the next calls of `restore`, then the number 7."""

    def __init__(self, *answers: Exception) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._answers = list(answers)

    def of_number(self, number: int) -> RuntimeAdapter | None:
        return LOADED if number == LOADED.number else None

    async def restore(self, *arguments: str) -> int:
        self.calls.append(arguments)
        if self._answers:
            raise self._answers.pop(0)
        return 7


def generator_over(engine: Idle, folder: Path) -> Generator:
    return Generator(engine, TextCodec(folder), ServedModels(("m",), ("start",), engine), None, 1 << 20)


def request(name: str, owner: str = "key", adapter: AdapterFiles | None = FILES) -> Accepted:
    body = {"model": "start" if adapter is None else "loaded"}
    return Accepted(name, "completions", body, [array("I", [5])], 20, None, 1, 1_700, owner, adapter=adapter)


def test_a_record_has_the_files_of_an_adapter_and_no_field_without_one():
    """Records of earlier versions do not have it either."""
    for adapter in (FILES, None):
        made: dict[int, records.JournalledRequest] = {}
        array_of = records.accepted(1, request("a", adapter=adapter))
        assert ("adapter" in array_of[2]) == (adapter is not None)
        records.replay(json.loads(json.dumps(array_of)), made, set())
        assert made[1].accepted == request("a", adapter=adapter)


@pytest.mark.parametrize("adapters", [None, Adapters()], ids=["none at run time", "some"])
def test_a_request_is_recorded_with_what_the_next_master_needs(tmp_path, adapters):
    """Also one of an adapter of the start, which the next master has, but none of an adapter that has left."""

    async def play() -> None:
        engine = Idle((ServedAdapter("loaded", 2, "key"), ServedAdapter("leaving", 3, "key")))
        generator = generator_over(engine, tmp_path)
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), generator, SECONDS, adapters)

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


def resume(
    folder: Path, adapters: Adapters | None, until: Callable[[Idle, ResumableRequests], bool]
) -> tuple[dict[str, int], list[str]]:
    """Resume the requests a, b and c, of which c is of the start and b and a share files.

    Returns, when `until` holds, the adapters of the requests that were submitted, and the errors of a and b.
    """
    engine = Idle()

    async def play() -> list[str]:
        resumable = ResumableRequests(Journal(folder / "j", MODEL), generator_over(engine, folder), SECONDS, adapters)
        assert resumable.resume() == 3
        async with asyncio.timeout(SECONDS):
            while not until(engine, resumable):
                await asyncio.sleep(0.001)
        requests = [resumable.find(name, "key") for name in ("a", "b")]
        errors = [found.ended.error for found in requests if found is not None and found.ended is not None]
        await resumable.close()
        return errors

    journal = Journal(folder / "j", MODEL)
    for entry in (request("a"), request("b"), request("c", adapter=None)):
        journal.accept(entry)
    journal.close()
    errors = asyncio.run(play())
    return {each.request_id.split("/")[0]: each.adapter for each in engine.submitted}, errors


def test_an_adapter_is_loaded_again_once_for_all_of_its_requests(tmp_path, monkeypatch):
    """While no pipeline serves it is tried again; the others do not wait for it."""
    monkeypatch.setattr(resumable_module, "RETRY_SECONDS", 0.001)
    adapters = Adapters(EngineUnavailableError("no pipeline serves"), EngineUnavailableError("no pipeline serves"))
    numbers, errors = resume(tmp_path, adapters, lambda engine, _: len(engine.submitted) == 3)
    assert adapters.calls == [("loaded", "/d/loaded", "key", "abc")] * 3
    assert sorted(numbers.values()) == [1, 7, 7]
    assert errors == []


@pytest.mark.parametrize(
    ("adapters", "reason"),
    [
        (Adapters(RequestError("lora_path: the files have changed")), "lora_path: the files have changed"),
        (None, "adapters cannot be loaded while the server runs: start it with --enable-runtime-adapters DIR"),
    ],
)
def test_an_adapter_that_is_refused_ends_its_requests_with_the_reason(tmp_path, adapters, reason):
    def until(engine: Idle, resumable: ResumableRequests) -> bool:
        found = [resumable.find(name, "key") for name in ("a", "b")]
        return len(engine.submitted) == 1 and all(each is not None and each.ended is not None for each in found)

    numbers, errors = resume(tmp_path, adapters, until)
    assert list(numbers.values()) == [1]
    assert errors == [f"the adapter 'loaded' could not be loaded again after the master's end: {reason}"] * 2


def test_without_a_pipeline_the_requests_wait_for_the_next_master(tmp_path, monkeypatch):
    monkeypatch.setattr(resumable_module, "RESTORE_SECONDS", -1.0)
    adapters = Adapters(*[EngineUnavailableError("no pipeline serves")] * 9)
    numbers, errors = resume(tmp_path, adapters, lambda engine, _: bool(adapters.calls and engine.submitted))
    assert (list(numbers.values()), errors) == ([1], [])
    left = Journal(tmp_path / "j", MODEL)
    unfinished = [entry.accepted for entry in left.requests.values() if entry.ended is None]
    assert replace(unfinished[0], prompts=[[5]]) == replace(request("a"), prompts=[[5]])
    assert len(unfinished) == 3
    left.close()
