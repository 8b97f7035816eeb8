"""The runner: which lines are sent when, and how batches end."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from orca_master.batches import batch_run, batch_store
from orca_master.batches.answer_files import AnswerFile, AnswerFiles
from orca_master.batches.input_lines import InputLines
from orca_master.endpoint.api_keys import digest
from orca_master.engine.engine_client import EngineStatus
from support.batches import GatedEngine, Server, created, ended, line, lines_of, play, servers, upload


@pytest.fixture
def server(tmp_path) -> Callable[..., Server]:
    return servers(tmp_path)


def test_a_cancelled_batch_keeps_its_answers(server):
    made = server(GatedEngine, concurrency=2)

    async def scene(client: openai.AsyncOpenAI) -> None:
        engine = made.scripted.engine
        file_id = await upload(client, line("a") + line("b") + line("c"))
        batch, queued = await created(client, file_id), await created(client, file_id)
        await made.wait_for_places(2)
        with pytest.raises(openai.BadRequestError, match="an unfinished batch uses this file"):
            await client.files.delete(file_id)
        await client.batches.cancel(queued.id)
        assert (await ended(client, queued.id)).status == "cancelled", "the other one need not end before"
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        done = await ended(client, batch.id)
        assert (done.status, done.output_file_id, done.error_file_id) == ("cancelled", None, None)
        assert engine.released == ["abort", "abort"]
        assert (await client.batches.cancel(batch.id)).status == "cancelled"
        assert made.num_promised == 0
        await client.files.delete(file_id)

    play(made, scene)


def test_an_answer_that_is_being_written_is_counted_when_its_batch_is_cancelled(server, monkeypatch):
    made = server()
    began, goes_on = threading.Event(), threading.Event()
    append = AnswerFile._append

    def slow(file: AnswerFile, *given: Any) -> None:
        began.set()
        assert goes_on.wait(30)
        append(file, *given)

    monkeypatch.setattr(AnswerFile, "_append", slow)

    async def scene(client: openai.AsyncOpenAI) -> None:
        batch = await created(client, await upload(client, line("a")))
        while not began.is_set():
            await asyncio.sleep(0.01)
        cancelling = asyncio.create_task(client.batches.cancel(batch.id))
        while (await client.batches.retrieve(batch.id)).status == "in_progress":
            await asyncio.sleep(0.01)
        goes_on.set()
        await cancelling
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("cancelled", 1)
        assert len(await lines_of(client, done.output_file_id)) == 1

    play(made, scene)


class SmallQueue(GatedEngine):
    """An engine in whose queue one request fits."""

    @property
    def status(self) -> EngineStatus:
        return replace(super().status, max_queued_requests=1, max_queued_tokens=1)


def test_choices_of_a_line_need_no_place_in_the_queue(server):
    made = server(SmallQueue)

    async def scene(client: openai.AsyncOpenAI) -> None:
        made.scripted.engine.gate.set()
        batch = await ended(client, (await created(client, await upload(client, line("a", n=3)))).id)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 0)

    play(made, scene)


def test_the_batches_of_several_keys_take_turns_and_those_of_one_key_follow_each_other(server):
    """One line at a time. The key `two` has a line, which does not wait for all lines of the key `one`."""
    made = server(GatedEngine, concurrency=1)

    async def scene(client: openai.AsyncOpenAI) -> None:
        other = made.client("two")
        text = "".join(line(f"{number}") for number in range(40))
        first = await created(client, await upload(client, text))
        second = await created(client, await upload(client, line("x")))
        third = await created(other, await upload(other, line("y")))
        while (await other.batches.retrieve(third.id)).status == "validating":
            await asyncio.sleep(0.01)
        assert (await client.batches.retrieve(second.id)).status == "validating"
        made.scripted.engine.gate.set()
        assert (await ended(other, third.id)).status == "completed"
        assert (await ended(client, second.id)).status == "completed"
        assert (await client.batches.retrieve(first.id)).request_counts.completed == 40
        salts = [submission.cache_salt for submission in made.scripted.engine.submissions]
        [place] = [place for place, salt in enumerate(salts) if salts.count(salt) == 1]
        assert place < 40, "beside the lines of `one`, not after them"

    play(made, scene)


def test_a_line_takes_a_place_for_each_choice(server):
    """Three places: a line of two choices, and one of another; a line of four is refused."""
    made = server(GatedEngine, concurrency=3)

    async def scene(client: openai.AsyncOpenAI) -> None:
        many = line("many", prompt=["a", "b"], n=2)
        text = many + line("two", n=2) + line("one") + line("wait", prompt=["a", "b"]) + line("last")
        batch = await created(client, await upload(client, text))
        await made.wait_for_places(3)
        await asyncio.sleep(0.05)
        assert len(made.scripted.engine.submissions) == 3
        made.scripted.engine.gate.set()
        done = await ended(client, batch.id)
        assert (done.request_counts.completed, done.request_counts.failed) == (4, 1)
        [refused] = await lines_of(client, done.error_file_id)
        assert refused["custom_id"] == "many"
        assert "4 choices (prompts x n) are more than the 3" in refused["error"]["message"]
        assert made.batches.runner.places.num_taken == 0

    play(made, scene)


def test_a_batch_reads_a_line_when_it_can_be_sent(server, monkeypatch):
    """One of 40 lines is being answered, and one waits."""
    made = server(GatedEngine, concurrency=1)
    numbers: list[int] = []
    read = InputLines.next

    async def noted(lines: InputLines) -> Any:
        numbers.append(len(numbers))
        return await read(lines)

    monkeypatch.setattr(InputLines, "next", noted)

    async def scene(client: openai.AsyncOpenAI) -> None:
        await created(client, await upload(client, "".join(line(f"{number}") for number in range(40))))
        await made.wait_for_places(1)
        await asyncio.sleep(0.05)
        assert len(numbers) <= 2

    play(made, scene)


def test_a_restarted_server_continues_and_answers_no_line_twice(server):
    """The first server has answered some lines, and one whose answer was cut off; the last ones were being answered."""
    texts = [f"{number}" for number in range(6)]
    found: dict[str, Any] = {}
    first = server(GatedEngine, concurrency=2)

    async def before(client: openai.AsyncOpenAI) -> None:
        batch = await created(client, await upload(client, "".join(map(line, texts))))
        await first.wait_for_places(2)
        found["id"] = batch.id

    play(first, before)
    record = first.batches.batches.unfinished[0]
    assert record.status == "in_progress"
    output = first.batches.files.path(record.output_id)
    head = f'{{"id": "batch_req_{record.id.removeprefix("batch_")}_'
    kept = f'{head}1", "custom_id": "1", "response": {{}}, "error": null}}\n'
    output.write_text(f'{kept}{head}0", "custom_id": "0", "resp')
    (first.config.folder / "files" / f"file-{1:032x}.jsonl").write_text("left by an interrupted upload")
    second = server()

    async def after(client: openai.AsyncOpenAI) -> None:
        done = await ended(client, found["id"])
        assert (done.status, done.request_counts.completed) == ("completed", 6)
        answers = await lines_of(client, done.output_file_id)
        assert answers[0] == json.loads(kept)
        assert sorted(entry["custom_id"] for entry in answers) == texts
        sizes = sum(path.stat().st_size for path in (second.config.folder / "files").glob("*.jsonl"))
        assert second.batches.files.room.total == sizes
        assert len(list((second.config.folder / "files").glob("*.jsonl"))) == 2

    play(second, after)


def test_the_bytes_of_a_line_that_was_cut_off_are_room_again_although_the_disk_was_full_meanwhile(server, monkeypatch):
    first = server(GatedEngine)
    found: dict[str, Any] = {}

    async def before(client: openai.AsyncOpenAI) -> None:
        found["id"] = (await created(client, await upload(client, line("a")))).id
        await first.wait_for_places(1)

    play(first, before)
    record = first.batches.batches.unfinished[0]
    for file_id in (record.output_id, record.error_id):
        first.batches.files.path(file_id).write_text('{"id": "cut off')
    monkeypatch.setattr(batch_run, "FIRST_WAIT_SECONDS", 0.01)
    sync, errors = AnswerFile.sync, [OSError(28, "No space left on device") for _ in range(2)]

    def unless_full(file: AnswerFile) -> None:
        if errors:
            raise errors.pop()
        sync(file)

    monkeypatch.setattr(AnswerFile, "sync", unless_full)
    second = server()

    async def after(client: openai.AsyncOpenAI) -> None:
        assert (await ended(client, found["id"])).status == "completed"
        sizes = sum(path.stat().st_size for path in (second.config.folder / "files").glob("*.jsonl"))
        assert (errors, second.batches.files.room.total) == ([], sizes)

    play(second, after)


def test_lines_wait_while_the_server_drains(server):
    made = server(GatedEngine)

    async def scene(client: openai.AsyncOpenAI) -> None:
        engine = made.scripted.engine
        engine.gate.set()
        engine.is_draining = True
        batch = await created(client, await upload(client, line("a")))
        while (await client.batches.retrieve(batch.id)).status != "in_progress":
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not engine.submissions
        engine.is_draining = False
        done = await ended(client, batch.id)
        assert (done.request_counts.completed, done.request_counts.failed) == (1, 0)

    play(made, scene)


@pytest.mark.parametrize("num_refused", [0, 3])
def test_a_batch_expires(server, monkeypatch, num_refused):
    """While the disk is full, it waits with the errors of its lines, too."""
    monkeypatch.setattr("orca_master.batches.batch_run.FIRST_WAIT_SECONDS", 0.01)
    made = server(GatedEngine)
    write, errors = os.write, [OSError(28, "No space left on device") for _ in range(num_refused)]

    def unless_full(descriptor: int, data: memoryview) -> int:
        if b"batch_expired" in bytes(data) and errors:
            raise errors.pop()
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", unless_full)

    async def scene(client: openai.AsyncOpenAI) -> None:
        file = made.batches.files.get(digest("one"), await upload(client, line("a") + line("b")))
        assert file is not None
        batch = made.batches.batches.new(digest("one"), "/v1/completions", file, {}, {})
        batch.expires_at = batch.created_at
        made.batches.files.places.take(digest("one"), 2)
        await made.batches.batches.add(batch)
        made.batches.runner.wake()
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.failed) == ("expired", 2)
        assert not errors
        assert {entry["error"]["code"] for entry in await lines_of(client, done.error_file_id)} == {"batch_expired"}

    play(made, scene)


def test_a_batch_fails_whose_input_is_gone(server):
    made = server()

    async def scene(client: openai.AsyncOpenAI) -> None:
        file_id = await upload(client, line("a"))
        made.batches.files.path(file_id).unlink()
        gone = await ended(client, (await created(client, file_id)).id)
        assert (gone.status, gone.failed_at is None) == ("failed", False)
        assert "No such file" in gone.errors.data[0].message
        assert made.num_promised == 0

    play(made, scene)


def test_a_batch_fails_if_answers_may_be_lost(server, monkeypatch):
    """The disk reports an error once: later synchronisations succeed, though the answers before are not on it."""
    monkeypatch.setattr("orca_master.batches.batch_run.SYNC_SECONDS", 0.01)
    made = server(GatedEngine)
    errors = [OSError(5, "Input/output error")]

    def sync(_: AnswerFiles) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(AnswerFiles, "sync", sync)

    async def scene(client: openai.AsyncOpenAI) -> None:
        batch = await created(client, await upload(client, line("a")))
        while errors:
            await asyncio.sleep(0.01)
        made.scripted.engine.gate.set()
        done = await ended(client, batch.id)
        assert done.status == "failed"
        assert "Input/output error" in done.errors.data[0].message

    play(made, scene)


def test_a_batch_waits_for_room_for_its_answers_and_keeps_no_other_key_waiting(server, monkeypatch):
    """There is one place, and the key `one` has no bytes left; then it deletes a file."""
    monkeypatch.setattr("orca_master.batches.batch_run.FIRST_WAIT_SECONDS", 0.01)
    made = server(max_bytes=2000, concurrency=1)

    async def scene(client: openai.AsyncOpenAI) -> None:
        other = made.client("two")
        filler = await upload(client, "x" * (999 - len(line("a"))))
        batch = await created(client, await upload(client, line("a")))
        while not made.scripted.engine.submissions:
            await asyncio.sleep(0.01)
        second = await created(other, await upload(other, line("b")))
        assert (await ended(other, second.id)).status == "completed"
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        await client.files.delete(filler)
        assert (await ended(client, batch.id)).request_counts.completed == 1
        assert len(made.scripted.engine.submissions) == 2, "no answer is generated twice"

    play(made, scene)


@pytest.mark.parametrize(
    ("written", "status"), [("answer", "in_progress"), ("record", "validating"), ("file", "in_progress")]
)
def test_a_batch_waits_while_the_disk_is_full(server, monkeypatch, written, status):
    """The lines of a day are not lost because somebody else has filled the disk for a minute."""
    monkeypatch.setattr("orca_master.batches.batch_run.FIRST_WAIT_SECONDS", 0.01)
    made = server()
    is_full, refused = True, 0

    def unless_full(write: Callable[..., Any], is_for: Callable[..., bool]) -> Callable[..., Any]:
        def refuse(*given: Any) -> Any:
            nonlocal refused
            if is_full and is_for(*given):
                refused += 1
                raise OSError(28, "No space left on device")
            return write(*given)

        return refuse

    if written == "answer":
        monkeypatch.setattr(os, "write", unless_full(os.write, lambda _, data: b"batch_req" in bytes(data)))
    elif written == "file":
        monkeypatch.setattr(batch_run, "AnswerFiles", unless_full(batch_run.AnswerFiles, lambda *_: True))
    else:
        is_begun = lambda _, fields: fields["status"] == "in_progress"  # noqa: E731
        monkeypatch.setattr(batch_store, "write_record", unless_full(batch_store.write_record, is_begun))

    async def scene(client: openai.AsyncOpenAI) -> None:
        nonlocal is_full
        batch = await created(client, await upload(client, line("a") + line("b")))
        while refused < 5:
            await asyncio.sleep(0.01)
        assert (await client.batches.retrieve(batch.id)).status == status
        is_full = False
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 2)
        assert len(made.scripted.engine.submissions) == 2, "no answer is generated twice"
        assert len(await lines_of(client, done.output_file_id)) == 2

    play(made, scene)


@pytest.mark.parametrize("errno", [28, 122])
def test_answers_that_a_full_disk_has_lost_are_generated_again(server, monkeypatch, errno):
    """Of what a failed fsync(2) leaves, nobody knows which part is on the disk: file systems allocate room late."""
    monkeypatch.setattr("orca_master.batches.batch_run.FIRST_WAIT_SECONDS", 0.01)
    made = server(concurrency=1)
    fsync, refused, is_full = os.fsync, list[str](), False

    def unless_full(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if is_full and name.endswith(".jsonl"):
            refused.append(name)
            raise OSError(errno, os.strerror(errno))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", unless_full)

    async def scene(client: openai.AsyncOpenAI) -> None:
        nonlocal is_full
        file_id = await upload(client, line("a") + line("b") + "no request\n")
        is_full = True
        batch = await created(client, file_id)
        while len(refused) < 4:
            await asyncio.sleep(0.01)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        is_full = False
        done = await ended(client, batch.id)
        counts = done.request_counts
        assert (done.status, counts.completed, counts.failed) == ("completed", 2, 1)
        assert [entry["custom_id"] for entry in await lines_of(client, done.output_file_id)] == ["a", "b"]
        assert len(await lines_of(client, done.error_file_id)) == 1
        sizes = [(await client.files.retrieve(name or "")).bytes for name in (done.output_file_id, done.error_file_id)]
        assert made.batches.files.room.total == sum(sizes) + (await client.files.retrieve(file_id)).bytes

    play(made, scene)


def test_a_file_of_answers_that_a_later_master_continues_is_described_anew(server, monkeypatch):
    """The first master dies between the record of the file and that of the batch, which the disk refuses."""
    made, refused = server(concurrency=1), list[Path]()
    append, write = AnswerFile._append, batch_store.write_record

    def append_first(file: AnswerFile, number: int, data: bytes) -> None:
        if number:
            raise OSError(5, "Input/output error")
        append(file, number, data)

    def unless_failed(path: Path, fields: dict[str, Any]) -> None:
        if fields["status"] == "failed":
            refused.append(path)
            raise OSError(5, "Input/output error")
        write(path, fields)

    async def first(client: openai.AsyncOpenAI) -> None:
        await created(client, await upload(client, line("a") + line("b")))
        while not refused:
            await asyncio.sleep(0.01)

    async def second(client: openai.AsyncOpenAI) -> None:
        (batch,) = (await client.batches.list()).data
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 2)
        name = done.output_file_id or ""
        assert (await client.files.retrieve(name)).bytes == len((await client.files.content(name)).content)
        for file in (await client.files.list()).data:
            await client.files.delete(file.id)
        assert later.batches.files.room.total == 0

    with monkeypatch.context() as patch:
        patch.setattr(AnswerFile, "_append", append_first)
        patch.setattr(batch_store, "write_record", unless_failed)
        play(made, first)
    play(later := server(), second)


def test_what_cannot_be_deleted_keeps_no_batch_waiting(server, monkeypatch):
    """The runner goes on after errors of the disk, and after unexpected ones."""
    made = server(seconds=-1.0)
    errors = [ValueError("unexpected"), OSError(5, "Input/output error")]
    refused: list[Path] = []

    def fail(path: Path, missing_ok: bool = False) -> None:
        refused.append(path)
        raise OSError(5, "Input/output error")

    def is_kept(file_id: str) -> bool:
        return made.batches.files.get(digest("one"), file_id) is not None

    async def wake_until(is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_done():
                made.batches.runner.wake()
                await asyncio.sleep(0.01)

    async def scene(client: openai.AsyncOpenAI) -> None:
        file_id = await upload(client, line("a"))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", fail)
            await wake_until(lambda: bool(refused) and is_kept(file_id))
            assert is_kept(file_id), "it is kept, and tried again later"
        with monkeypatch.context() as patch:
            patch.setattr(made.batches.files, "delete_old", lambda used: _raise(errors.pop()))
            await wake_until(lambda: not errors)
        made.batches.runner.wake()
        while (await client.files.list()).data:
            await asyncio.sleep(0.01)

    play(made, scene)
    assert not errors


def _raise(error: Exception) -> None:
    raise error
