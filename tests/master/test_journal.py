"""The journal's files: what a damaged end, a full disk, another model and forgotten requests leave in them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import threading
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest
from orca_master.endpoint import resumable as resumable_module
from orca_master.endpoint.answer_parts import continues_reasoning
from orca_master.endpoint.generation import Generator
from orca_master.endpoint.resumable import MAX_RESUMES, ResumableRequests
from orca_master.endpoint.resumable_request import ResumableRequest
from orca_master.endpoint.served_models import ServedModels
from orca_master.engine.admission import Admission
from orca_master.engine.config import EngineConfig
from orca_master.engine.live_requests import LiveRequests
from orca_master.engine.messages import Observers, Submission
from orca_master.errors import ConfigurationError, EngineUnavailableError, QueueFullError, RequestError
from orca_master.journal import journal as journal_module
from orca_master.journal import records
from orca_master.journal.folder_lock import when_free
from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted, Ended, JournalledRequest, RecordError, Token, TokenLog
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_master.text.detokenizer import IncrementalDecoder
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.adapter_restorer import NO_ADAPTERS
from support.idle_engine import Idle

MODEL = "/models/m"
tokens = st.builds(
    Token,
    st.integers(0, 100),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, "stop", "length"]),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
)


def request(name: str = "cmpl-1", prompt_length: int = 3) -> Accepted:
    prompts = [array("I", [1] * prompt_length), array("I", [7])]
    return Accepted(name, "completions", {"stop": "ü\n"}, prompts, 20, None, 2**64 - 1, 1_700, "")


def segments(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".journal"))


def test_no_prompt_stays_when_no_request_is_remembered(tmp_path):
    journal = Journal(tmp_path, MODEL)
    number = journal.accept(request())
    journal.end(number, Ended(1.0, ""))
    assert b"prompts" in (tmp_path / segments(tmp_path)[0]).read_bytes()
    journal.forget(number)
    (name,) = segments(tmp_path)
    assert b"prompts" not in (tmp_path / name).read_bytes()
    journal.close()
    assert segments(tmp_path) == []


@pytest.mark.parametrize("flushes", [True, False])
def test_an_old_request_is_written_again_instead_of_keeping_all_files(tmp_path, monkeypatch, flushes):
    """The file may end between a token's note and its flush."""
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 2_000)
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 10_000)
    journal = Journal(tmp_path, MODEL, max_bytes=20_000)
    old = journal.accept(request("old"))
    known = JournalledRequest(request("old"))
    journal.content_of = {old: known}.__getitem__
    for index in range(400):
        journal.note(old, Token(0, index))
        known.tokens.append(Token(0, index))
        if flushes:
            journal.flush()
        for other in range(5):
            journal.forget(journal.accept(request(f"{index}-{other}")))
    assert journal.is_on
    journal.close()
    again = Journal(tmp_path, MODEL)
    found = {entry.accepted.request_id: entry for entry in again.requests.values()}
    assert [token.token for token in found["old"].tokens] == list(range(400))
    again.close()


def test_old_requests_are_written_again_a_few_with_each_line(tmp_path, monkeypatch):
    """The thread that writes serves all clients: it must not write a file of megabytes at once."""
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 4_000)
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 12_000)
    monkeypatch.setattr(journal_module, "MOVE_BYTES", 1)
    journal = Journal(tmp_path, MODEL)
    made = {journal.accept(request(f"old-{index}")): request(f"old-{index}") for index in range(10)}
    journal.content_of = lambda number: JournalledRequest(made[number])
    first, grown = tmp_path / segments(tmp_path)[0], []
    for _ in range(150):
        before = journal.num_bytes
        number = journal.accept(request("new"))
        grown.append(journal.num_bytes - before)
        journal.forget(number)
    length = min(grow for grow in grown if grow > 0)
    num_moved = sum(grow // length - 1 for grow in grown if grow > 0)
    assert num_moved >= len(made), "all old ones were written again"
    assert max(grown) < 5 * length, "two or three with each line"
    journal.close()
    again = Journal(tmp_path, MODEL)
    found = {entry.accepted.request_id: entry.accepted for entry in again.requests.values()}
    assert found.items() >= {entry.request_id: entry for entry in made.values()}.items()
    assert not first.exists()
    again.close()


@pytest.mark.parametrize("fails", [True, False])
def test_no_file_is_deleted_before_the_request_in_it_is_on_the_disk_again(tmp_path, monkeypatch, fails):
    """Tokens of an old request may be in several files: the death of the machine must not leave only some of them."""
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 400)
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 1_200)
    synced = threading.Event()

    def fsync(descriptor: int) -> None:
        if not synced.wait(60) or fails:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    journal = Journal(tmp_path, MODEL)
    old = journal.accept(request("old"))
    journal.content_of = lambda number: JournalledRequest(request("old"), TokenLog([Token(0, 1)] * 20))
    for _ in range(100):
        journal.forget(journal.accept(request("new")))
    assert segments(tmp_path)[0] == "00000001.journal"
    numbers = [int(name[:8]) for name in segments(tmp_path)]
    assert numbers == list(range(1, len(numbers) + 1)), "none is missing before the newest are on the disk"
    synced.set()
    journal.end(old, Ended(1.0, ""))
    journal.forget(old)
    journal.close()
    assert segments(tmp_path) == [], "no prompt stays behind"


def test_what_was_written_is_read(tmp_path):
    journal = Journal(tmp_path / "new" / "folder", MODEL)
    first, second = journal.accept(request("a")), journal.accept(request("b"))
    journal.note(first, Token(0, 5))
    journal.note(second, Token(1, 6, "stop", b"\x01\xff"))
    journal.flush()
    journal.note(first, Token(1, 9))
    journal.end(second, Ended(12.5, "why"))
    journal.close()
    again = Journal(tmp_path / "new" / "folder", MODEL)
    a, b = again.requests.values()
    assert (a.accepted, a.tokens, a.ended) == (request("a"), [Token(0, 5), Token(1, 9)], None)
    assert (b.accepted, b.tokens, b.ended) == (request("b"), [Token(1, 6, "stop", b"\x01\xff")], Ended(12.5, "why"))
    assert again.accept(request("c")) not in (first, second)
    again.close()


@given(st.lists(tokens, max_size=20), st.data())
def test_a_file_that_ends_anywhere_loses_only_what_comes_after(tmp_path_factory, outputs, data):
    """The kernel may have written a part of the last line when the machine died."""
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder, MODEL)
    number = journal.accept(request())
    ends = []
    for output in outputs:
        journal.note(number, output)
        journal.flush()
        ends.append(journal.num_bytes)
    journal.close()
    path = folder / segments(folder)[0]
    content = path.read_bytes()
    begin = len(b"".join(content.splitlines(keepends=True)[:4]))
    length = data.draw(st.integers(begin, len(content)))
    path.write_bytes(content[:length])
    again = Journal(folder, MODEL)
    (found,) = again.requests.values()
    again.close()
    assert found.tokens == [output for output, end in zip(outputs, ends, strict=True) if end <= length]


def write_small_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Write a finished request of 100 tokens to a journal of files of 500 bytes; return its number."""
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 500)
    journal = Journal(folder, MODEL)
    number = journal.accept(request())
    for index in range(100):
        journal.note(number, Token(0, index))
        journal.flush()
    journal.end(number, Ended(1.0, ""))
    journal.close()
    return number


def check_continued(journal: Journal, folder: Path, number: int, num_kept: int) -> None:
    """Continue that request after `num_kept` tokens, and assert that the next journal has all of it."""
    journal.resume([number])
    for index in range(num_kept, 100):
        journal.note(number, Token(0, index))
    journal.end(number, Ended(2.0, ""))
    journal.close()
    (found,) = (last := Journal(folder, MODEL)).requests.values()
    assert ([token.token for token in found.tokens], found.ended) == (list(range(100)), Ended(2.0, ""))
    last.close()


@pytest.mark.parametrize(
    ("old", "new"), [(b"[1,0,1", b"[1,9,1"), (b'"journal"', b'"journaL"'), (b'["journal"', b'x\n["journal"')]
)
def test_a_request_has_no_gap_after_a_damaged_file(tmp_path, monkeypatch, old, new):
    """Its later tokens and its end are ignored, so that they are computed again; a master may have done so already."""
    number = write_small_files(tmp_path, monkeypatch)
    _, path, *_ = (tmp_path / name for name in segments(tmp_path))
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    again = Journal(tmp_path, MODEL)
    (found,) = again.requests.values()
    kept = [token.token for token in found.tokens]
    assert (kept, found.ended) == (list(range(len(kept))), None)
    assert len(kept) < 40
    check_continued(again, tmp_path, number, len(kept))


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_request_has_no_gap_after_a_file_that_lacks_whole_lines(tmp_path, monkeypatch, is_removed):
    """Each write ends with a line, so a file that the death of the machine has cut does, too."""
    number = write_small_files(tmp_path, monkeypatch)
    first, path, *_ = (tmp_path / name for name in segments(tmp_path))
    num_kept = first.read_bytes().count(b'["tokens",[1,')
    if is_removed:
        path.unlink()
    else:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[: len(lines) // 2]))
        num_kept += b"".join(lines[: len(lines) // 2]).count(b'["tokens",[1,')
    again = Journal(tmp_path, MODEL)
    (found,) = again.requests.values()
    assert ([token.token for token in found.tokens], found.ended) == (list(range(num_kept)), None)
    check_continued(again, tmp_path, number, num_kept)


@pytest.mark.parametrize("num_lines", [0, 1, 3])
def test_a_request_has_no_gap_when_somebody_cuts_the_newest_file(tmp_path, caplog, num_lines):
    """Such as a program that rotates logs. What cannot be written behind the gap is computed again."""
    journal = Journal(tmp_path, MODEL)
    number = journal.accept(request())
    for index in range(5):
        journal.note(number, Token(0, index))
        journal.flush()
    path = tmp_path / segments(tmp_path)[0]
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:num_lines])
    os.truncate(path, len(kept))
    journal.note(number, Token(0, 5))
    journal.flush()
    assert not journal.is_on
    assert "another program has changed" in caplog.text
    assert path.read_bytes() == kept
    journal.close()


@given(st.binary(max_size=60))
def test_a_damaged_line_is_an_error_of_its_own(line):
    with pytest.raises(RecordError):
        records.decode(line)
    good = records.encode(["ended", 1, 2.0, ""])
    assert records.decode(good) == ["ended", 1, 2.0, ""]
    with pytest.raises(RecordError):
        records.decode(good[:-1])


@pytest.mark.parametrize(
    "record", [["accepted", 1, {"unknown": 1}], ["ended", 1, "x", ""], ["tokens", [1]], ["tokens", 5], ["other", 1]]
)
def test_a_line_of_another_version_ends_the_reading_of_its_file(tmp_path, record, caplog):
    journal = Journal(tmp_path, MODEL)
    journal.accept(request())
    journal.close()
    path = tmp_path / segments(tmp_path)[0]
    path.write_bytes(path.read_bytes() + records.encode(record))
    again = Journal(tmp_path, MODEL)
    assert len(again.requests) == 1
    again.close()
    assert "the rest of the file is ignored" in caplog.text


def test_requests_of_another_model_are_ignored_and_their_files_deleted(tmp_path, caplog):
    journal = Journal(tmp_path, "/models/other")
    journal.accept(request())
    journal.close()
    again = Journal(tmp_path, MODEL)
    assert again.requests == {}
    again.forget(again.accept(request()))
    assert len(segments(tmp_path)) == 1
    assert "it is for another model" in caplog.text
    again.close()


def test_files_are_deleted_when_their_requests_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1_000)
    journal = Journal(tmp_path, MODEL)
    numbers = [journal.accept(request(str(index), 200)) for index in range(20)]
    assert len(segments(tmp_path)) > 5
    for number in numbers[1:]:
        journal.forget(number)
    assert len(segments(tmp_path)) > 5, "the first request is in the first file"
    journal.forget(numbers[0])
    assert len(segments(tmp_path)) == 1
    assert journal.num_bytes == (tmp_path / segments(tmp_path)[0]).stat().st_size
    journal.close()
    again = Journal(tmp_path, MODEL)
    assert again.requests == {}
    again.close()


def test_a_full_disk_at_the_start_leaves_the_journal_off_and_reads_what_is_there(tmp_path, monkeypatch):
    journal = Journal(tmp_path, MODEL)
    journal.accept(request("a"))
    journal.close()
    monkeypatch.setattr(os, "write", _no_space)
    again = Journal(tmp_path, MODEL)
    assert not again.is_on
    (found,) = again.requests.values()
    assert found.accepted == request("a")
    again.end(again.accept(request("b")), Ended(1.0, ""))
    for number in list(again.requests):
        again.forget(number)
    again.close()


@pytest.mark.parametrize("fault", ["limit", "disk", "sync"])
def test_a_journal_that_cannot_be_written_is_off_and_nothing_else_fails(tmp_path, monkeypatch, caplog, fault):
    journal = Journal(tmp_path, MODEL, max_bytes=1_000 if fault == "limit" else 1 << 20)
    number = journal.accept(request("a"))
    if fault == "disk":
        monkeypatch.setattr(os, "write", _no_space)
    elif fault == "sync":
        monkeypatch.setattr(os, "fsync", _no_space)
    for _ in range(1_000):
        journal.note(number, Token(0, 5))
        journal.flush()
    journal.end(journal.accept(request("b")), Ended(1.0, ""))
    journal.close()
    assert not journal.is_on
    monkeypatch.undo()
    assert caplog.text.count("the journal is off, serving goes on") == 1
    again = Journal(tmp_path, MODEL, max_bytes=1_000 if fault == "limit" else 1 << 20)
    assert again.is_on
    assert next(iter(again.requests.values())).accepted == request("a")
    again.close()


@pytest.mark.parametrize("forgotten", [0, 2])
@pytest.mark.parametrize("closes", [True, False])
def test_requests_that_ended_after_a_failure_are_not_unfinished_at_the_next_start(
    tmp_path, monkeypatch, closes, forgotten
):
    """Their ends could not be written: no next master computes them again, and no prompt stays behind."""
    journal = Journal(tmp_path, MODEL)
    numbers = [journal.accept(request(text)) for text in ("a", "b")]
    monkeypatch.setattr(os, "write", _no_space)
    journal.end(numbers[0], Ended(1.0, ""))
    assert len(segments(tmp_path)) == 1, "the other one is unfinished"
    journal.end(numbers[1], Ended(1.0, ""))
    assert segments(tmp_path) == [], "although both are remembered for those who read them again"
    for number in numbers[:forgotten]:
        journal.forget(number)
    assert journal.num_bytes == 0
    monkeypatch.undo()
    if closes:
        journal.close()
    else:  # as a process does that is killed
        os.close(journal._lock_file)
    again = Journal(tmp_path, MODEL)
    assert again.is_on
    assert again.requests == {}
    again.close()


def test_the_outputs_of_a_request_take_eight_bytes_each():
    """A master that starts reads millions of them; lists of tuples would take fifteen times the memory."""
    plain, whole = Token(1, 2**32 - 1), Token(0, 7, "stop", b"a", b"b")
    log = TokenLog([plain] * 10_000)
    reading = iter(log)
    log.append(whole)
    assert list(reading) == [*[plain] * 10_000, whole]
    assert (log[0], log[-1], log[9_999:], log[10_001:]) == (plain, whole, [plain, whole], [])
    assert log == [*[plain] * 10_000, whole]
    assert log != [plain]
    assert len(log._numbers) * log._numbers.itemsize == 8 * len(log)
    for index in (10_001, -10_002):
        with pytest.raises(IndexError):
            log[index]
    for token in (-1, 2**32):
        with pytest.raises(OverflowError):
            log.append(Token(0, token))
    assert len(log) == 10_001


def test_only_the_owner_can_read_the_files(tmp_path):
    journal = Journal(tmp_path / "j", MODEL)
    journal.accept(request())
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "j").iterdir()}
    assert (modes, (tmp_path / "j").stat().st_mode & 0o777) == ({0o600}, 0o700)
    journal.close()


def test_a_second_master_is_refused_and_a_killed_one_does_not_hold_the_folder(tmp_path):
    program = (
        "import os, sys, pathlib; from orca_master.journal.journal import Journal; "
        "journal = Journal(pathlib.Path(sys.argv[1]), '/models/m'); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(ConfigurationError, match="another master uses this folder"):
            Journal(tmp_path, MODEL)
        holder.kill()
    Journal(tmp_path, MODEL).close()


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"--journal .*/file: "):
        Journal(tmp_path / "file", MODEL)


def test_a_signal_ends_the_reading_and_changes_nothing(tmp_path, monkeypatch):
    """The largest journal takes a minute, and who sends the signal kills after less."""
    write_long_requests(tmp_path)
    written = [(tmp_path / name).read_bytes() for name in segments(tmp_path)]
    replay, began, goes_on = records.replay, threading.Event(), threading.Event()
    num_read = 0

    def slow(*given: Any) -> None:
        nonlocal num_read
        num_read += 1
        began.set()
        assert goes_on.wait(60)
        replay(*given)

    monkeypatch.setattr(records, "replay", slow)

    async def run() -> None:
        opening = asyncio.create_task(when_free(lambda stops: Journal(tmp_path, MODEL, stops), 0))
        while not began.is_set():
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(run())
    assert num_read == 1
    assert [(tmp_path / name).read_bytes() for name in segments(tmp_path)] == written
    again = Journal(tmp_path, MODEL)
    assert [len(entry.tokens) for entry in again.requests.values()] == [500, 500]
    again.close()


def test_no_texts_are_written(tmp_path):
    journal = Journal(tmp_path, MODEL)
    journal.accept(request())
    journal.close()
    line = (tmp_path / segments(tmp_path)[0]).read_bytes().splitlines()[3]
    assert json.loads(line[9:])[2]["body"] == {"stop": "ü\n"}


@pytest.mark.parametrize(
    ("prompt", "echo", "texts"),
    [("ab", True, ["ab"]), (["ab", "c"], True, ["ab", "c"]), ("ab", False, None), ([1, 2], True, None)],
)
def test_only_texts_that_the_response_repeats_are_recorded(tmp_path, prompt, echo, texts):
    async def play() -> None:
        generator = idle_generator(tmp_path)
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), generator, 60, NO_ADAPTERS)
        body = CompletionRequest(prompt=prompt, echo=echo)
        recorder = resumable.accept("completions", body, generator.prepare("cmpl-", body, [[1]], 16, None), "")
        assert recorder is not None
        assert isinstance(recorder.body, CompletionRequest)
        assert recorder.body.texts == texts
        assert ("prompt" in recorder.accepted.body) == (texts is not None)
        await resumable.close()

    asyncio.run(play())


def idle_generator(folder: Path) -> Generator:
    engine = Idle()
    return Generator(engine, TextCodec(folder), ServedModels(("m",), (), engine), 1 << 20)


def write_long_requests(folder: Path) -> None:
    """Write a journal of the unfinished requests a and b, with 500 tokens each."""
    journal = Journal(folder, MODEL)
    for name in "ab":
        number = journal.accept(Accepted(name, "completions", {}, [array("I", [1])], 1_000, None, 1, 1, ""))
        for _ in range(500):
            journal.note(number, Token(0, 5))
    journal.close()


def _no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_requests_that_wait_for_their_turn_are_not_counted(tmp_path):
    """The master may die of the request before them, whose tokens it decodes."""
    write_long_requests(tmp_path / "j")

    async def life() -> list[int]:
        journal = Journal(tmp_path / "j", MODEL)
        resumable = ResumableRequests(journal, idle_generator(tmp_path), 60, NO_ADAPTERS)
        requests = [found for name in "ab" if (found := resumable.find(name, "")) is not None]
        assert resumable.resume(pb.ModelFacts) == 2
        for _ in range(4):
            await asyncio.sleep(0)
        journal.failure = "killed: nothing more is written"
        await resumable.close()
        return [request.num_resumed for request in requests]

    assert [asyncio.run(life()) for _ in range(2)] == [[1, 0], [2, 0]]


def test_a_request_that_every_master_dies_of_is_given_up(tmp_path):
    """Also one that ends them before its first token; a token of a later life begins the count anew."""

    async def life(wants: int, killed: bool = True) -> list[ResumableRequest]:
        generator = idle_generator(tmp_path)
        journal = Journal(tmp_path / "j", MODEL)
        resumable = ResumableRequests(journal, generator, 60, NO_ADAPTERS)
        assert resumable.resume(pb.ModelFacts) == wants
        for _ in range(20):  # all have their turn
            await asyncio.sleep(0)
        requests = [found for name in ("a", "b") if (found := resumable.find(name, "")) is not None]
        if killed:
            journal.failure = "killed: nothing more is written"
        await resumable.close()
        return requests

    journal = Journal(tmp_path / "j", MODEL)
    journal.accept(replace(request("a"), body={}))
    second = journal.accept(replace(request("b"), body={}))
    journal.close()
    asyncio.run(life(wants=2, killed=False))  # does not count
    for _ in range(MAX_RESUMES - 1):
        asyncio.run(life(wants=2))
    journal = Journal(tmp_path / "j", MODEL)
    journal.note(second, Token(0, 5))
    journal.flush()
    journal.failure = "killed: nothing more is written"
    journal.close()
    asyncio.run(life(wants=2))
    first, other = asyncio.run(life(wants=1))
    assert first.ended is not None
    assert first.ended.error == f"{MAX_RESUMES} masters have ended since the request's last token"
    assert other.ended is None


def test_a_request_that_is_accepted_before_the_others_are_resumed_runs_once(tmp_path):
    """The engine serves some turns of the event loop before the server resumes: clients try again and again."""

    async def play() -> None:
        generator = idle_generator(tmp_path)
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), generator, 60, NO_ADAPTERS)
        body = CompletionRequest(prompt=[1, 2])
        generation = generator.prepare("cmpl-", body, [[1, 2]], 16, None)
        recorder = resumable.accept("completions", body, generation, "")
        assert recorder is not None
        recorder.accept()
        assert resumable.find(generation.request_id, "") is recorder
        assert resumable.resume(pb.ModelFacts) == 1, "only that of the earlier master"
        assert recorder.num_resumed == 0
        await resumable.close()

    journal = Journal(tmp_path / "j", MODEL)
    journal.accept(replace(request("earlier"), body={}))
    journal.close()
    asyncio.run(play())


@pytest.mark.parametrize(("length", "is_recorded"), [(4, True), (5, False)])
def test_no_request_fills_the_journal_with_log_probabilities_of_its_prompts(tmp_path, monkeypatch, length, is_recorded):
    """25 of the largest responses turned the journal off."""
    monkeypatch.setattr(resumable_module, "MAX_PROMPT_LOGPROBS", 2 * 4 * 2)

    async def play() -> None:
        generator = idle_generator(tmp_path)
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), generator, 60, NO_ADAPTERS)
        plain, body = (CompletionRequest(prompt=[1], prompt_logprobs=count) for count in (None, 1))
        prompts = [[1] * length] * 2
        assert resumable.accept("completions", plain, generator.prepare("cmpl-", plain, prompts, 16, None), "")
        recorder = resumable.accept("completions", body, generator.prepare("cmpl-", body, prompts, 16, None), "")
        assert (recorder is not None) == is_recorded
        await resumable.close()

    asyncio.run(play())


def test_a_name_with_a_lone_surrogate_is_refused(tmp_path):
    """A record could have no such name, while texts may have lone surrogates."""

    async def play() -> None:
        generator = idle_generator(tmp_path)
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), generator, 60, NO_ADAPTERS)
        schema = {"type": "object", "properties": {"\ud800": {}}, "title": "\ud801"}
        for value, is_refused in (({"json": schema}, True), ({"json": {"title": "\ud801"}}, False)):
            body = CompletionRequest(prompt=[1], structured_outputs=value)
            generation = generator.prepare("cmpl-", body, [[1]], 16, None)
            if is_refused:
                with pytest.raises(RequestError, match=r"the name '\\ud800' in an object has a lone surrogate"):
                    resumable.accept("completions", body, generation, "")
            else:
                assert resumable.accept("completions", body, generation, "") is not None
        await resumable.close()

    asyncio.run(play())


def test_allowed_tokens_take_few_bytes_of_the_journal(tmp_path):
    """As a list of numbers, those of a few hundred requests would fill it, and it would be off for all."""

    async def play() -> None:
        generator = idle_generator(tmp_path)
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), generator, 60, NO_ADAPTERS)
        vocabulary = generator._engine.status.vocabulary_size
        several = random.Random(1).sample(range(vocabulary), vocabulary // 2)
        for tokens in ([0], [vocabulary - 1, 3, 3], several):
            body = CompletionRequest(prompt=[1], allowed_token_ids=tokens, n=2)
            generation = generator.prepare("cmpl-", body, [[1]], 16, None)
            recorder = resumable.accept("completions", body, generation, "")
            assert recorder is not None
            assert len(json.dumps(recorder.accepted.body)) < 100 + vocabulary / 4
            again = recorder.generation(generator)
            assert [choice.submission.sampling for choice in again.choices] == [
                choice.submission.sampling for choice in generation.choices
            ]
        plain = CompletionRequest(prompt=[1], n=2)
        recorder = resumable.accept("completions", plain, generator.prepare("cmpl-", plain, [[1]], 16, None), "")
        assert recorder is not None
        assert recorder.accepted.body == {"n": 2}
        await resumable.close()

    asyncio.run(play())


@pytest.mark.parametrize(("begun", "within"), [("<think>1 +", True), ("<think>1</think>It", False), ("It", False)])
def test_a_resumed_answer_is_parsed_as_before(tmp_path, begun, within):
    """Whether it continues the reasoning, although the client's text is not recorded."""

    async def play() -> None:
        generator = idle_generator(tmp_path)
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), generator, 60, NO_ADAPTERS)
        options = {"add_generation_prompt": False, "continue_final_message": True}
        body = ChatCompletionRequest(messages=[{"role": "assistant", "content": begun}], **options)
        recorder = resumable.accept("chat", body, generator.prepare("chatcmpl-", body, [[1]], 16, None), "")
        assert recorder is not None
        assert continues_reasoning(body) == continues_reasoning(recorder.body) == within
        assert begun not in json.dumps(recorder.accepted.body)
        await resumable.close()

    asyncio.run(play())


def test_a_server_that_stops_before_it_resumes_ends_the_streams_that_wait(tmp_path):
    """Otherwise they would hold the server up until its connections are cut, with a traceback in the log."""

    async def play() -> None:
        generator = idle_generator(tmp_path)
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), generator, 60, NO_ADAPTERS)
        waiting = resumable.find("earlier", "")
        assert waiting is not None
        reading = asyncio.create_task(anext(waiting.pieces(waiting.generation(generator))))
        await asyncio.sleep(0)
        resumable.interrupt()
        with pytest.raises(EngineUnavailableError, match="the server stops"):
            await asyncio.wait_for(reading, 60)
        assert waiting.ended is None, "the next server resumes it"
        await resumable.close()

    journal = Journal(tmp_path / "j", MODEL)
    journal.accept(replace(request("earlier"), body={}))
    journal.close()
    asyncio.run(play())


def test_a_full_queue_refuses_no_request_that_was_accepted_before(tmp_path):
    pool = RequestPool(1, 100)
    scheduler = Scheduler(SchedulerConfig(1, 1), pool)
    admission = Admission(scheduler, EngineConfig())
    ends = lambda outputs: None, Observers(), lambda: None
    requests = LiveRequests(scheduler, admission, lambda request: None, *ends)
    for name in ("a", "b"):
        submission = Submission(name, [1, 2], 80, SamplingParameters(), frozenset(), generated=(5,))
        requests.accept(submission)
    assert [entry.generated for entry in pool] == [[5], [5]]
    with pytest.raises(QueueFullError):
        requests.accept(Submission("c", [1], 1, SamplingParameters(), frozenset()))


STEPS = ("accept", "note", "note", "note", "flush", "end", "forget", "crash")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), max_size=150))
def test_whatever_happens_flushed_tokens_are_there_once_and_in_order(tmp_path_factory, steps):
    """Small files, so that every step may begin a new one, write an old request again, or delete a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "SEGMENT_BYTES", 400)
        patch.setattr(journal_module, "COMPACT_BYTES", 900)
        patch.setattr(journal_module, "MOVE_BYTES", 1)
        folder = tmp_path_factory.mktemp("journal")
        journal = Journal(folder, MODEL)
        live: dict[int, JournalledRequest] = {}
        flushed: dict[int, int] = {}
        journal.content_of = live.__getitem__
        for count, (step, place) in enumerate([*steps, ("crash", 0)]):
            numbers = list(live)
            number = numbers[place % len(numbers)] if numbers else 0
            if step == "accept" or (not numbers and step != "crash"):
                made = Accepted(str(count), "completions", {}, [array("I", [1])], 9, None, 1, 1, "")
                number = journal.accept(made)
                live[number], flushed[number] = JournalledRequest(made), 0
            elif step == "note" and live[number].ended is None:
                live[number].tokens.append(Token(0, count))
                journal.note(number, Token(0, count))
            elif step == "flush":
                journal.flush()
                flushed = {number: len(request.tokens) for number, request in live.items()}
            elif step == "end" and live[number].ended is None:
                live[number].ended = Ended(float(count), "")
                journal.end(number, live[number].ended)
                flushed = {number: len(request.tokens) for number, request in live.items()}
            elif step == "forget" and live[number].ended is not None:
                del live[number], flushed[number]
                journal.forget(number)
            elif step == "crash":
                journal._tokens.clear()  # what was not flushed dies with the process
                journal.close()
                journal = Journal(folder, MODEL)
                found = journal.requests
                assert live.keys() <= found.keys()
                for number, request in live.items():
                    kept = found[number].tokens
                    assert kept == request.tokens[: len(kept)]
                    assert len(kept) >= flushed[number]
                    assert (found[number].accepted, found[number].ended) == (request.accepted, request.ended)
                for number in found.keys() - live.keys():  # forgotten, in a file that others need
                    assert found[number].ended is not None
                    journal.forget(number)
                live = {number: found[number] for number in live}
                flushed = {number: len(request.tokens) for number, request in live.items()}
                journal.content_of = live.__getitem__
        journal.close()


def test_the_event_loop_runs_between_the_requests_that_are_resumed(tmp_path, monkeypatch):
    """Each decodes its tokens again; without a sign of life for long, `orca serve` kills its master."""
    journal = Journal(tmp_path / "j", MODEL)
    for name in "abc":
        journal.accept(replace(request(name), body={}))
    journal.close()
    order: list[str] = []
    generation = ResumableRequest.generation
    monkeypatch.setattr(
        ResumableRequest, "generation", lambda *given: order.append("request") or generation(*given)
    )  # fmt: skip

    async def play() -> None:
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), idle_generator(tmp_path), 60, NO_ADAPTERS)
        assert resumable.resume(pb.ModelFacts) == 3
        for _ in range(10):
            order.append("loop")
            await asyncio.sleep(0)
        await resumable.close()

    asyncio.run(play())
    assert order.count("request") == 3
    assert ("request", "request") not in itertools.pairwise(order)


@pytest.mark.parametrize("stops", [False, True])
def test_the_event_loop_runs_while_a_long_request_is_resumed(tmp_path, monkeypatch, stops):
    """Its tokens are decoded again, tens of microseconds each. A server that stops meanwhile ends its streams."""
    write_long_requests(tmp_path / "j")
    events: list[str] = []
    step = IncrementalDecoder.step

    def noted(decoder: IncrementalDecoder, token: int, last: bool, stops: bool = False) -> str:
        events.append("token")
        return step(decoder, token, last, stops)

    monkeypatch.setattr(IncrementalDecoder, "step", noted)

    async def play() -> None:
        generator = idle_generator(tmp_path)
        resumable = ResumableRequests(Journal(tmp_path / "j", MODEL), generator, 60, NO_ADAPTERS)
        second = resumable.find("b", "")
        assert second is not None
        assert resumable.resume(pb.ModelFacts) == 2
        while events.count("token") < (600 if stops else 1_000):
            events.append("loop")
            await asyncio.sleep(0)
        assert not generator.activity.idle.is_set(), "the end of the server waits for them"
        if stops:
            resumable.interrupt()
            with pytest.raises(EngineUnavailableError, match="the server stops"):
                async for _ in second.pieces(second.generation(generator)):
                    pass
        await resumable.close()
        assert second.ended is None

    asyncio.run(play())
    counts = [len(list(group)) for kind, group in itertools.groupby(events) if kind == "token"]
    assert stops or max(counts) <= 64, "between two turns of the event loop"
