"""Files of answers: cut off at any byte, continued, and full disks."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest
from orca_master.batches.answer_files import AnswerFiles
from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.shares import Shares
from orca_master.errors import RequestError

BATCH = f"batch_{7:032x}"


def opened(folder: Path, room: Shares | None = None) -> AnswerFiles:
    """Return the files, whose bytes are counted in the `room`."""
    room = Shares(1 << 20, "no room") if room is None else room
    return AnswerFiles(BATCH, folder / "out", folder / "err", DiskThreads(), room, "one")


def fill(folder: Path) -> list[bytes]:
    """Write two answers and two errors; return the lines of both files."""
    answers = opened(folder)
    asyncio.run(answers.add_response(0, "a", 200, "r0", b'{"x": "\xc3\xa9"}'))
    asyncio.run(answers.add_response(2, 'b"\n', 200, "r1", b'{\n"x": 1}'))
    asyncio.run(answers.add_response(1, "c", 400, "r2", b'{"error": {}}'))
    asyncio.run(answers.add_error(3, None, "invalid_line", "no"))
    answers.sync()
    answers.close()
    return [(folder / name).read_bytes() for name in ("out", "err")]


def test_lines_have_the_form_of_the_batch_api(tmp_path):
    output, errors = ([json.loads(line) for line in data.splitlines()] for data in fill(tmp_path))
    prefix = f"batch_req_{7:032x}"
    assert output == [
        {"id": f"{prefix}_0", "custom_id": "a", "error": None,
         "response": {"status_code": 200, "request_id": "r0", "body": {"x": "é"}}},
        {"id": f"{prefix}_2", "custom_id": 'b"\n', "error": None,
         "response": {"status_code": 200, "request_id": "r1", "body": {"x": 1}}},
    ]  # fmt: skip
    assert errors == [
        {"id": f"{prefix}_1", "custom_id": "c", "error": None,
         "response": {"status_code": 400, "request_id": "r2", "body": {"error": {}}}},
        {"id": f"{prefix}_3", "custom_id": None, "response": None, "error": {"code": "invalid_line", "message": "no"}},
    ]  # fmt: skip


def test_a_file_that_is_cut_off_anywhere_keeps_its_whole_lines(tmp_path):
    whole = fill(tmp_path)[0]
    for length in range(len(whole) + 1):
        (tmp_path / "out").write_bytes(whole[:length])
        answers = opened(tmp_path)
        complete = whole[:length].count(b"\n")
        assert answers.output.numbers == {*[0, 2][:complete]}
        assert answers.errors.numbers == {1, 3}
        assert (tmp_path / "out").stat().st_size == answers.output.num_bytes
        for number, custom_id, body in ((0, "a", b'{"x": "\xc3\xa9"}'), (2, 'b"\n', b'{"x": 1}')):
            if number not in answers:
                asyncio.run(answers.add_response(number, custom_id, 200, f"r{number // 2}", body))
        answers.close()
        assert (tmp_path / "out").read_bytes() == whole


def test_an_answer_that_is_written_after_its_writer_was_cancelled_counts(tmp_path, monkeypatch):
    """Else the end of the batch would write a second one."""
    begun, goes_on = threading.Event(), threading.Event()
    write = os.write

    def slow(descriptor: int, data: memoryview) -> int:
        begun.set()
        assert goes_on.wait(60)
        return write(descriptor, data)

    async def scene() -> None:
        writer = asyncio.create_task(answers.add_response(0, "a", 200, "r0", b"{}"))
        assert await asyncio.to_thread(begun.wait, 60)
        writer.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writer

    answers = opened(tmp_path)
    monkeypatch.setattr("orca_master.batches.answer_files.os.write", slow)
    asyncio.run(scene())
    assert 0 in answers
    answers.close()


def test_a_line_that_is_longer_than_what_is_read_at_a_time(tmp_path, monkeypatch):
    whole = fill(tmp_path)
    monkeypatch.setattr("orca_master.batches.answer_files.READ_BYTES", 60)
    answers = opened(tmp_path)
    assert (answers.output.numbers, answers.errors.numbers) == ({0, 2}, {1, 3})
    answers.close()
    assert [(tmp_path / name).read_bytes() for name in ("out", "err")] == whole


def test_an_error_of_the_disk_is_not_forgotten(tmp_path, monkeypatch):
    answers = opened(tmp_path)
    errors = [OSError(5, "Input/output error")]

    def fsync(_: int) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            answers.sync()
    answers.close()


def test_zeros_after_a_loss_of_power_are_removed(tmp_path):
    whole = fill(tmp_path)[0]
    (tmp_path / "out").write_bytes(whole + b"\0" * 50 + b"\n")
    answers = opened(tmp_path)
    answers.close()
    assert (tmp_path / "out").read_bytes() == whole


@pytest.mark.parametrize("block", [60, 4096])
def test_a_line_with_zeros_after_a_loss_of_power_is_answered_again(tmp_path, monkeypatch, block):
    """Of the pages of a line any may be missing, also one before its end."""
    first, second = fill(tmp_path)[0].splitlines(keepends=True)
    (tmp_path / "out").write_bytes(first + second[:-9] + b"\0" * 8 + b"\n" + first)
    monkeypatch.setattr("orca_master.batches.answer_files.READ_BYTES", block)
    answers = opened(tmp_path)
    answers.close()
    assert (tmp_path / "out").read_bytes() == first


def test_a_part_of_a_line_that_could_not_be_removed_is_removed_before_the_next(tmp_path, monkeypatch):
    answers = opened(tmp_path)
    asyncio.run(answers.add_error(0, "a", "x", "y"))
    write = os.write

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]) if len(data) > 60 else full())
    monkeypatch.setattr(os, "ftruncate", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            asyncio.run(answers.add_error(1, "b" * 10, "x" * 20, "y"))
    monkeypatch.undo()
    asyncio.run(answers.add_error(1, "b", "x", "y"))
    answers.close()
    assert [json.loads(line)["custom_id"] for line in (tmp_path / "err").read_bytes().splitlines()] == ["a", "b"]


@pytest.mark.parametrize("written", [0, 5])
def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path, monkeypatch, written):
    room = Shares(1 << 20, "no room")
    answers = opened(tmp_path, room)
    asyncio.run(answers.add_error(0, "a", "x", "y"))
    before = (tmp_path / "err").read_bytes()
    write = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) > 20:
            return write(descriptor, data[:written]) if written and len(data) > 60 else _fail()
        return write(descriptor, data)

    def _fail() -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        asyncio.run(answers.add_error(1, "b" * 10, "x" * 20, "y"))
    monkeypatch.undo()
    assert (tmp_path / "err").read_bytes() == before
    assert answers.errors.numbers == {0}
    assert room.total == len(before)
    asyncio.run(answers.add_error(1, "b", "x", "y"))
    answers.close()
    assert (tmp_path / "err").read_bytes().count(b"\n") == 2


def test_a_line_without_room_is_refused_and_not_written(tmp_path):
    room = Shares(300, "no room")
    answers = opened(tmp_path, room)
    asyncio.run(answers.add_error(0, "a", "x", "y"))
    before = (tmp_path / "err").read_bytes()
    with pytest.raises(RequestError, match="no room"):
        asyncio.run(answers.add_error(1, "b", "x", "y"))
    answers.close()
    assert (tmp_path / "err").read_bytes() == before
    assert room.total == len(before)
