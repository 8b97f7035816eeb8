"""The stores of files and batches: their bounds, what they delete, errors of the disk, and damaged records."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from orca_master.batches import batch_store, records
from orca_master.batches.batch_store import BatchStore
from orca_master.batches.config import BatchConfig
from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.records import BatchRecord, FileRecord
from orca_master.endpoint.api_keys import digest
from orca_master.errors import ConfigurationError, RequestError
from support.batches import GatedEngine, Server, created, ended, line, lines_of, play, servers, upload


@pytest.fixture
def server(tmp_path) -> Callable[..., Server]:
    return servers(tmp_path)


@pytest.mark.parametrize(
    ("limits", "message"), [({"max_files": 4}, "--max-batch-files"), ({"max_bytes": 4 * 120}, "--max-batch-bytes")]
)
def test_a_key_leaves_half_of_the_room_to_others(server, limits, message):
    made = server(**limits)

    async def scene(client: openai.AsyncOpenAI) -> None:
        other = made.client("two")
        for number in range(2):
            await upload(client, f"{number}".ljust(120))
        with pytest.raises(openai.BadRequestError, match=f"one API key .{message}"):
            await upload(client, "x".ljust(120))
        for number in range(2):
            await upload(other, f"{number}".ljust(120))

    play(made, scene)


def test_a_key_has_half_of_the_unfinished_batches(server):
    made = server(GatedEngine, max_files=10)

    async def scene(client: openai.AsyncOpenAI) -> None:
        file = made.batches.files.get(digest("one"), await upload(client, line("a")))
        assert file is not None
        for _ in range(5):
            await made.batches.batches.add(made.batches.batches.new(digest("one"), "/v1/completions", file, {}, {}))
        with pytest.raises(RequestError, match="half of them those of one API key"):
            made.batches.batches.new(digest("one"), "/v1/completions", file, {}, {})
        made.batches.batches.new(digest("two"), "/v1/completions", file, {}, {})

    play(made, scene)


def test_the_batch_of_the_largest_key_that_ended_first_makes_room(server):
    made = server(max_files=8)

    async def scene(client: openai.AsyncOpenAI) -> None:
        other = made.client("two")
        kept = await ended(other, (await created(other, await upload(other, line("b")))).id)
        file_id = await upload(client, line("a"))
        ids = []
        for _ in range(10):
            done = await ended(client, (await created(client, file_id)).id)
            assert done.status == "completed"
            ids.append(done.id)
            await client.files.delete(done.output_file_id)
        assert {entry.id for entry in (await client.batches.list()).data} == set(ids[3:])
        assert (await other.batches.retrieve(kept.id)).status == "completed"
        assert all(isinstance(entry, BatchRecord) for entry in made.batches.batches.of(digest("one")))

    play(made, scene)


def test_a_batch_is_coming_until_the_one_that_makes_room_is_deleted(tmp_path, monkeypatch):
    """Its files are in use and it counts as unfinished then; the disk keeps nothing else waiting."""
    store = BatchStore(BatchConfig(tmp_path, max_files=1), DiskThreads())
    store.open()
    file = FileRecord(f"file-{0:032x}", "", "in.jsonl", "batch", 1, 1, 1)
    unlink, begun, gate = Path.unlink, threading.Event(), threading.Event()

    def slow(path: Path, missing_ok: bool = False) -> None:
        begun.set()
        gate.wait(30)
        unlink(path, missing_ok=missing_ok)

    async def scene() -> None:
        first = store.new("", "/v1/completions", file, {}, {})
        await store.create(first)
        await store.enter(first, "completed")
        second = store.new("", "/v1/completions", file, {}, {})
        monkeypatch.setattr(Path, "unlink", slow)
        creation = asyncio.create_task(store.create(second))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        assert file.id in store.used_files
        assert store.of("") == []
        with pytest.raises(RequestError, match="at most 1 batches are unfinished"):
            store.new("", "/v1/completions", file, {}, {})
        gate.set()
        await creation
        assert store.of("") == store.unfinished == [second]
        assert [path.stem for path in (tmp_path / "batches").iterdir()] == [second.id]

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_batches_of_one_second_keep_their_order(tmp_path, monkeypatch):
    """Also for the next master, which reads their records."""
    config, file = BatchConfig(tmp_path, max_files=8), FileRecord(f"file-{0:032x}", "", "in.jsonl", "batch", 1, 1, 1)
    store, after = (BatchStore(config, DiskThreads()) for _ in range(2))
    store.open()
    monkeypatch.setattr(records, "time", SimpleNamespace(time=time.time, time_ns=itertools.count(1 << 60).__next__))
    monkeypatch.setattr(batch_store, "time", SimpleNamespace(time=lambda: 7.0))
    batches = [store.new("", "/v1/completions", file, {}, {}) for _ in range(8)]

    async def scene() -> None:
        for batch in batches[::-1]:  # writes may end in any order
            await store.create(batch)

    asyncio.run(scene())
    after.open()
    for each in (store, after):
        assert each.unfinished == batches
        assert each.of("") == batches[::-1]


def test_old_files_and_batches_are_deleted(server):
    made = server(seconds=-1.0)

    async def scene(client: openai.AsyncOpenAI) -> None:
        batch = await created(client, await upload(client, line("a")))
        while (await client.files.list()).data or (await client.batches.list()).data:
            made.batches.runner.wake()
            await asyncio.sleep(0.01)
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve(batch.id)
        assert not list((made.config.folder / "files").iterdir())

    play(made, scene)


class FailingWrites:
    """The disk refuses the first `num_left` records of batches of this status."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: str, num_left: int) -> None:
        self.num_left = num_left
        write = batch_store.write_record

        def fail(path: Path, fields: dict[str, Any]) -> None:
            if fields["status"] == status and self.num_left:
                self.num_left -= 1
                raise OSError(28, "No space left on device")
            write(path, fields)

        monkeypatch.setattr(batch_store, "write_record", fail)


@pytest.mark.parametrize("status", ["finalizing", "completed"])
def test_an_end_that_cannot_be_stored_is_tried_again(server, monkeypatch, status):
    monkeypatch.setattr("orca_master.batches.batch_run.END_SECONDS", 0.01)
    failing = FailingWrites(monkeypatch, status, 3)

    async def scene(client: openai.AsyncOpenAI) -> None:
        done = await ended(client, (await created(client, await upload(client, line("a")))).id)
        assert (done.status, done.errors, done.failed_at) == ("completed", None, None)
        assert len(await lines_of(client, done.output_file_id)) == 1
        assert made.num_promised == 0

    made = server()
    play(made, scene)
    assert failing.num_left == 0


def test_a_batch_that_cannot_be_stored_does_not_begin(server, monkeypatch):
    """The runner looks for batches while it is being written, and its input cannot be deleted then."""
    made = server()
    write, gate = batch_store.write_record, threading.Event()

    def fail(path: Path, fields: dict[str, Any]) -> None:
        gate.wait(30)
        raise OSError(28, "No space left on device")

    async def scene(client: openai.AsyncOpenAI) -> None:
        file = made.batches.files.get(digest("one"), await upload(client, line("a")))
        assert file is not None
        monkeypatch.setattr(batch_store, "write_record", fail)
        creation = asyncio.create_task(made.batches.create(file.owner, "/v1/completions", file, {}))
        await asyncio.sleep(0.01)
        made.batches.runner.wake()
        with pytest.raises(openai.BadRequestError, match="an unfinished batch uses this file"):
            await client.files.delete(file.id)
        assert (await client.batches.list()).data == []
        gate.set()
        with pytest.raises(OSError, match="No space"):
            await creation
        assert not made.scripted.engine.submissions
        assert made.num_promised == 0
        monkeypatch.setattr(batch_store, "write_record", write)
        assert (await ended(client, (await created(client, file.id)).id)).status == "completed"

    play(made, scene)


def test_a_cancellation_that_cannot_be_stored_changes_nothing(server, monkeypatch):
    """Otherwise the next server would answer a batch that was shown as cancelled."""
    made = server(GatedEngine)
    FailingWrites(monkeypatch, "cancelling", 1)

    async def scene(client: openai.AsyncOpenAI) -> None:
        batch = await created(client, await upload(client, line("a")))
        await made.wait_for_places(1)
        record = made.batches.batches.get(digest("one"), batch.id)
        assert record is not None
        with pytest.raises(OSError, match="No space"):
            await made.batches.cancel(record)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        await client.batches.cancel(batch.id)
        assert (await ended(client, batch.id)).status == "cancelled"

    play(made, scene)


def test_a_full_disk_is_503_and_leaves_nothing(server, monkeypatch):
    made = server(GatedEngine)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def scene(client: openai.AsyncOpenAI) -> None:
        file_id = await upload(client, line("a"))
        batch = await created(client, file_id)
        num_bytes = made.batches.files.room.total
        with monkeypatch.context() as patch:
            patch.setattr(batch_store, "write_record", full)
            patch.setattr("orca_master.batches.file_store.write_record", full)
            calls = (upload(client, line("b")), created(client, file_id), client.batches.cancel(batch.id))
            for call in calls:
                with pytest.raises(openai.InternalServerError, match="No space left on device") as refused:
                    await call
                assert refused.value.status_code == 503
        assert (made.batches.files.room.total, made.num_promised) == (num_bytes, 2)
        names = {path.stem for path in (made.config.folder / "files").iterdir()}
        assert file_id in names
        assert len(names) <= 3, "the input and the answers of the batch"

    play(made, scene)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "paused"},
        {"times": None},
        {"created_at": "x"},
        {"total": True},
        {"output_id": "../x"},
        {"id": "batch_x"},
        {"metadata": [1]},
    ],
)
def test_a_record_with_an_odd_field_is_ignored(server, change):
    """Of another version, or written by somebody else: the runner answers the other batches."""
    made = server()
    ids = (f"file-{number:032x}" for number in range(3))
    record = BatchRecord(f"batch_{0:032x}", digest("one"), "/v1/completions", next(ids), 1, 1, 1, next(ids), next(ids))
    fields = record.fields() | change
    (made.config.folder / "batches").mkdir(parents=True)
    (made.config.folder / "batches" / f"{fields['id']}.json").write_text(json.dumps(fields))

    async def scene(client: openai.AsyncOpenAI) -> None:
        assert (await client.batches.list()).data == []
        batch = await created(client, await upload(client, line("a")))
        assert (await ended(client, batch.id)).status == "completed"

    play(made, scene)


def test_a_damaged_record_is_ignored(server):
    made = server()
    for name in ("files", "batches"):
        (made.config.folder / name).mkdir(parents=True)
        (made.config.folder / name / "x.json").write_text("{")
        (made.config.folder / name / "y.json").write_text('{"id": "y"}')
        (made.config.folder / name / "w.json").write_text("[" * 100_000)
        (made.config.folder / name / "z.tmp").write_text("")

    async def scene(client: openai.AsyncOpenAI) -> None:
        assert (await client.files.list()).data == []
        assert (await client.batches.list()).data == []

    play(made, scene)
    assert not list(made.config.folder.rglob("*.tmp"))


def test_a_folder_has_one_master(server):
    async def scene(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(ConfigurationError, match=r"--batch-directory .* another master uses this folder"):
            async with server().running():
                pass

    play(server(), scene)


@pytest.mark.parametrize("folder", ["files", "batches"])
def test_the_content_of_a_record_that_cannot_be_read_is_kept(server, folder):
    """A damaged byte, or an earlier version of the server, does not remove what a client has sent or waits for."""
    made = server(GatedEngine, concurrency=1)

    async def begin(client: openai.AsyncOpenAI) -> None:
        batch = await created(client, await upload(client, line("a") + line("b")))
        await made.wait_for_places(1)
        made.scripted.engine.gate.set()
        await ended(client, batch.id)

    async def go_on(client: openai.AsyncOpenAI) -> None:
        assert made.batches.files.room.total == num_bytes, "they take their room"
        await upload(client, line("c"))

    play(made, begin)
    path = next((made.config.folder / folder).glob("*.json"))
    answers = made.config.folder / "files" / f"{json.loads(path.read_text()).get('output_id', path.stem)}.jsonl"
    if folder == "batches":  # as of a batch that has not ended
        answers.with_suffix(".json").unlink()
    whole = path.read_text()
    path.write_text(whole[:-1])
    content = {entry.name: entry.read_bytes() for entry in (made.config.folder / "files").glob("*.jsonl")}
    num_bytes = sum(map(len, content.values()))
    made = server()
    play(made, go_on)
    kept = {entry.name: entry.read_bytes() for entry in (made.config.folder / "files").glob("*.jsonl")}
    assert kept.items() >= content.items()
    path.unlink()
    play(server(), lambda _: asyncio.sleep(0))
    assert not answers.exists(), "nothing else names it"


def test_the_event_loop_runs_while_the_folder_is_read(server, monkeypatch):
    """A thousand records on a disk of the network take ten seconds, and a master without a sign of life is killed."""
    began, goes_on = threading.Event(), threading.Event()
    read = batch_store.read_records

    def slow(*given: Any) -> Any:
        began.set()
        assert goes_on.wait(30), "only the event loop sets it"
        return read(*given)

    monkeypatch.setattr(batch_store, "read_records", slow)

    async def list_files() -> None:
        async with server().running() as client:
            assert (await client.files.list()).data == []

    async def run() -> None:
        listing = asyncio.create_task(list_files())
        while not began.is_set():
            await asyncio.sleep(0.01)
        goes_on.set()
        await listing

    asyncio.run(run())
