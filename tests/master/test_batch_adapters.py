"""Lines of batches that name adapters which were loaded at run time, before and after the end of the master."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import openai
import pytest
from orca_master.batches import batch_store, run_adapters
from orca_master.batches.batch_store import BatchStore
from orca_master.batches.config import BatchConfig
from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.input_lines import BatchLine
from orca_master.batches.records import BatchRecord, FileRecord
from orca_master.batches.run_adapters import RunAdapters
from orca_master.endpoint.api_keys import digest
from orca_master.engine.adapter_registry import OFF, ServedAdapter
from orca_master.engine.engine_client import EngineStatus
from orca_master.errors import ADAPTER_LIMIT, EngineUnavailableError, RequestError
from orca_master.journal.records import AdapterFiles
from support.adapter_restorer import FILES, LOADED, RESTORED_NUMBER, Restorer
from support.batches import GatedEngine, Server, created, ended, line, lines_of, play, servers, upload

OWNER = digest("one")
SERVED = ServedAdapter(FILES.name, LOADED.number, OWNER)
INPUT = line("a") + line("b", model="loaded") + line("c", model="absent") + line("d", model="loaded")
MISSING = "model_not_found"


class AdaptedEngine(GatedEngine):
    """Serves `adapters`, too. Closes its gate after each answer."""

    adapters: tuple[ServedAdapter, ...] = ()

    @property
    def status(self) -> EngineStatus:
        return replace(super().status, adapters=self.adapters)

    def release(self, request_id: str, ended_as: str | None) -> None:
        self.gate.clear()


@pytest.fixture
def server(tmp_path) -> Callable[..., Server]:
    """Return a function that makes servers over one folder, each with a Restorer, one line at a time."""
    make = servers(tmp_path)
    return lambda restorer: make(AdaptedEngine, restorer=restorer, concurrency=1)


async def begun(made: Server, client: openai.AsyncOpenAI) -> str:
    """Create a batch of INPUT; return its id when the engine has its first line."""
    batch_id: str = (await created(client, await upload(client, INPUT))).id
    await made.wait_for_places(1)
    await submitted(made, 1)
    return batch_id


async def submitted(made: Server, count: int) -> None:
    """Return when the engine has so many submissions."""
    async with asyncio.timeout(60):
        while len(made.scripted.engine.submissions) < count:
            await asyncio.sleep(0.001)


async def completed(made: Server, client: openai.AsyncOpenAI, batch_id: str) -> Any:
    """Let the engine answer until the batch has ended; return it."""
    ending = asyncio.create_task(ended(client, batch_id))
    while not ending.done():
        made.scripted.engine.gate.set()
        await asyncio.sleep(0.001)
    return ending.result()


async def answers(made: Server, client: openai.AsyncOpenAI, batch_id: str) -> dict[str, Any]:
    """Let the batch end; return by `custom_id` which adapter the engine used, or the error's code and message."""
    done = await completed(made, client, batch_id)
    assert done.status == "completed"
    answered = [entry["custom_id"] for entry in await lines_of(client, done.output_file_id)]
    numbers = [submission.adapter for submission in made.scripted.engine.submissions]
    found: dict[str, Any] = dict(zip(answered[-len(numbers) :], numbers, strict=True))  # not those of earlier masters
    for entry in await lines_of(client, done.error_file_id):
        error = entry["error"] or entry["response"]["body"]["error"]
        found[entry["custom_id"]] = error["code"], error["message"]
    code, message = found.pop("c")
    assert (code, "the model 'absent' does not exist" in message) == (MISSING, True)
    return found


def finished_by_next(
    server: Callable[..., Server], restorer: Restorer | None, loaded: tuple[ServedAdapter, ...] = ()
) -> dict[str, Any]:
    """Begin a batch in a master that serves SERVED; return the answers of the next one, which serves `loaded`."""
    first, second = server(Restorer()), server(restorer)
    first.scripted.engine.adapters, second.scripted.engine.adapters = (SERVED,), loaded
    found: dict[str, Any] = {}

    async def before(client: openai.AsyncOpenAI) -> None:
        found["id"] = await begun(first, client)

    async def after(client: openai.AsyncOpenAI) -> None:
        found["answers"] = await answers(second, client, found["id"])
        if not loaded:
            with pytest.raises(openai.NotFoundError, match="'loaded' does not exist"):  # for requests of clients
                await client.completions.create(model="loaded", prompt="a")
            later = await created(client, await upload(client, line("e", model="loaded")))
            assert (await ended(client, later.id)).request_counts.failed == 1  # for lines of later batches

    play(first, before)
    play(second, after)
    return found["answers"]


def test_the_next_master_loads_an_adapter_once_and_until_the_end_of_the_batch(server):
    restorer = Restorer()
    assert finished_by_next(server, restorer) == {"a": 0, "b": RESTORED_NUMBER, "d": RESTORED_NUMBER}
    assert restorer.calls == [("loaded", FILES.folder, OWNER, FILES.digest)]
    assert restorer.released == [RESTORED_NUMBER]


@pytest.mark.parametrize(
    ("restorer", "reason"),
    [
        (Restorer(RequestError("lora_path: the files have changed")), "lora_path: the files have changed"),
        (Restorer(ZeroDivisionError("a fault")), "a fault"),
        (None, OFF),
    ],
)
def test_an_adapter_that_is_refused_fails_its_lines_with_the_reason(server, restorer, reason):
    found = finished_by_next(server, restorer)
    error = MISSING, f"model: the adapter 'loaded' could not be loaded again after the master's end: {reason}"
    assert found == {"a": 0, "b": error, "d": error}
    assert restorer is None or len(restorer.calls) == 1


def test_an_adapter_that_its_owner_has_loaded_since_is_used(server):
    restorer = Restorer()
    assert finished_by_next(server, restorer, (SERVED,)) == {"a": 0, "b": LOADED.number, "d": LOADED.number}
    assert restorer.calls == []


def test_an_adapter_that_another_key_has_loaded_is_not_used(server):
    restorer = Restorer()
    others = (SERVED._replace(owner=digest("two")),)
    assert finished_by_next(server, restorer, others)["b"] == RESTORED_NUMBER


def test_lines_of_an_adapter_that_is_unloaded_fail(server):
    made = server(restorer := Restorer())
    made.scripted.engine.adapters = (SERVED,)

    async def scene(client: openai.AsyncOpenAI) -> None:
        batch_id = await begun(made, client)
        made.scripted.engine.gate.set()
        await submitted(made, 2)
        made.scripted.engine.adapters = ()
        found = await answers(made, client, batch_id)
        assert (found["b"], found["d"][0]) == (LOADED.number, MISSING)

    play(made, scene)
    assert restorer.calls == []


def test_an_adapter_that_was_loaded_after_the_batch_began_is_loaded_again(server):
    """Also by the second next master."""
    first, second, third = server(Restorer()), server(Restorer()), server(restorer := Restorer())
    found: dict[str, str] = {}

    async def before(client: openai.AsyncOpenAI) -> None:
        found["id"] = await begun(first, client)
        assert first.batches.batches.unfinished[0].adapters == {}
        first.scripted.engine.adapters = (SERVED,)
        first.scripted.engine.gate.set()
        await submitted(first, 2)

    async def between(client: openai.AsyncOpenAI) -> None:
        await submitted(second, 1)

    async def after(client: openai.AsyncOpenAI) -> None:
        assert third.batches.batches.unfinished[0].adapters == {"loaded": FILES}
        assert await answers(third, client, found["id"]) == {"b": RESTORED_NUMBER, "d": RESTORED_NUMBER}

    play(first, before)
    play(second, between)
    play(third, after)
    assert len(restorer.calls) == 1


def test_a_batch_that_waits_behind_another_keeps_its_adapters(server):
    first, second = server(Restorer()), server(restorer := Restorer())
    first.scripted.engine.adapters = (SERVED,)
    ids: list[str] = []

    async def before(client: openai.AsyncOpenAI) -> None:
        ids.append(await begun(first, client))
        ids.append((await created(client, await upload(client, line("e", model="loaded")))).id)

    async def after(client: openai.AsyncOpenAI) -> None:
        for batch_id in ids:
            await completed(second, client, batch_id)
        numbers = sorted(submission.adapter for submission in second.scripted.engine.submissions)
        assert numbers == [0] + [RESTORED_NUMBER] * 3

    play(first, before)
    play(second, after)
    assert restorer.released == [RESTORED_NUMBER] * 2


class Adapters:
    """LineAdapters. `errors`: of the next calls of `restored`; `held`: what is restored."""

    def __init__(self) -> None:
        self.served: set[str] = set()
        self.loaded: dict[str, AdapterFiles] = {}
        self.errors: list[Exception] = []
        self.held: list[AdapterFiles] = []

    def served_to(self, owner: str) -> set[str]:
        return self.served

    def loaded_by(self, owner: str) -> dict[str, AdapterFiles]:
        return self.loaded

    @contextlib.asynccontextmanager
    async def restored(self, owner: str, files: AdapterFiles) -> AsyncIterator[None]:
        if self.errors:
            raise self.errors.pop(0)
        self.held.append(files)
        yield
        self.held.remove(files)


REQUEST = BatchLine(0, "a", b"{}", model="loaded")


@pytest.fixture
def adapters() -> Adapters:
    return Adapters()


@pytest.fixture
def batch(tmp_path) -> BatchRecord:
    store = BatchStore(BatchConfig(tmp_path), DiskThreads())
    file = FileRecord("file-1", OWNER, "in.jsonl", "batch", 1, 1, 1)
    return store.new(OWNER, "/v1/completions", file, {}, {"loaded": FILES})


@pytest.fixture
def run(tmp_path, adapters, batch) -> RunAdapters:
    """Return the adapters of a batch of an earlier master."""
    store = BatchStore(BatchConfig(tmp_path), DiskThreads())
    store.open()
    return RunAdapters(batch, store, adapters, is_earlier=True)


def bounded(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 60))


@pytest.mark.parametrize(
    "error", [EngineUnavailableError("the server ends"), RequestError("64 are loaded", code=ADAPTER_LIMIT)]
)
def test_a_line_waits_while_its_adapter_cannot_be_loaded(run, adapters, error, monkeypatch):
    monkeypatch.setattr(run_adapters, "RETRY_SECONDS", 0.001)
    adapters.errors = [error] * 3

    async def scene() -> None:
        assert await run.ready(REQUEST) == REQUEST
        assert (adapters.errors, adapters.held) == ([], [FILES])
        await run.close()
        assert adapters.held == []

    bounded(scene())


def test_what_the_next_master_serves_from_its_start_is_used(run, adapters):
    adapters.served = {"loaded"}

    async def scene() -> None:
        assert await run.ready(REQUEST) == REQUEST
        assert adapters.held == []

    bounded(scene())


def test_an_adapter_of_the_earlier_master_does_not_return_under_a_name_that_was_loaded_since(run, adapters, batch):
    other = AdapterFiles("loaded", "/d/other", "def")

    async def scene() -> None:
        await run.ready(REQUEST)
        await run.record()
        assert (adapters.held, batch.adapters) == ([FILES], {"loaded": FILES})
        adapters.loaded = {"loaded": other}
        await run.record()
        assert (adapters.held, batch.adapters) == ([], {"loaded": other})
        adapters.loaded = {}
        assert await run.ready(REQUEST) == REQUEST, "which the route refuses"
        await run.record()
        assert (adapters.held, batch.adapters) == ([], {})

    bounded(scene())


def test_adapters_that_cannot_be_recorded_fail_no_line(run, adapters, batch, monkeypatch, caplog):
    other = AdapterFiles("other", "/d/other", "def")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def scene() -> None:
        adapters.loaded = {"other": other}
        with monkeypatch.context() as patch:
            patch.setattr(batch_store, "write_record", full)
            await run.record()
        assert batch.adapters == {"loaded": FILES}
        assert "its adapters are not recorded: [Errno 28]" in caplog.text
        await run.record()
        assert batch.adapters == {"loaded": FILES, "other": other}

    bounded(scene())
