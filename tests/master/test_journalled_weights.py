"""The weights that computed the tokens in a journal: what its files have of them, and what the next master compares."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from orca_master.endpoint.generation import Generator
from orca_master.endpoint.resumable import ResumableRequests
from orca_master.endpoint.served_models import ServedModels
from orca_master.journal import journal as journal_module
from orca_master.journal import records
from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted, Token
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.adapter_restorer import NO_ADAPTERS
from support.idle_engine import Idle

MODEL = "/models/m"
OLD = pb.ModelFacts(source="old", file_digest={"adapter sql: w": "1"})
NEW = pb.ModelFacts(file_digest={"model.safetensors": "2"})
UNKNOWN = pb.ModelFacts()


def accepted(name: str) -> Accepted:
    return Accepted(name, "completions", {}, [array("I", [1])], 20, None, 1, 1_700, "")


def write(folder: Path, *weights: pb.ModelFacts) -> None:
    """Write a journal of an unfinished request with a token of each of these weights."""
    journal = Journal(folder, MODEL)
    number = journal.accept(accepted("begun"))
    for each in weights:
        journal.weights_of = lambda: each  # noqa: B023
        journal.note(number, Token(0, 5))
        journal.flush()
    journal.close()


def read(folder: Path) -> Journal:
    journal = Journal(folder, MODEL)
    journal.close()
    return journal


@pytest.mark.parametrize(
    "weights", [(OLD,), (OLD, NEW), (OLD, UNKNOWN), ()], ids=["one", "others", "none then", "none"]
)
def test_the_files_have_the_weights_of_the_last_tokens(tmp_path, weights):
    write(tmp_path, *weights)
    for _ in range(2):  # the first one begins a file without tokens
        journal = read(tmp_path)
        assert journal.weights == (weights[-1] if weights else UNKNOWN)
        assert len(journal.requests[1].tokens) == len(weights)


def test_a_new_file_has_the_weights_of_the_one_before(tmp_path, monkeypatch):
    """Files are deleted from the oldest on."""
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1)
    write(tmp_path, OLD)
    *_, newest = sorted(tmp_path.glob("*.journal"))
    for path in tmp_path.glob("*.journal"):
        if path != newest:
            path.unlink()
    assert read(tmp_path).weights == OLD


def test_weights_are_written_when_they_change_and_only_before_tokens(tmp_path):
    journal = Journal(tmp_path, MODEL)
    journal.weights_of = lambda: OLD
    journal.accept(accepted("waits"))
    journal.flush()
    number = journal.accept(accepted("begun"))
    for weights, times in ((OLD, 3), (NEW, 1)):
        journal.weights_of = lambda: weights  # noqa: B023
        for _ in range(times):
            journal.note(number, Token(0, 5))
            journal.flush()
    journal.close()
    assert [record[0] for record in lines(tmp_path)[2:]] == [
        *("tokens", "accepted", "accepted", "tokens", "tokens", "tokens", "tokens", "tokens", "tokens", "stopped"),
    ]
    identified = [found for record in lines(tmp_path) if (found := records.weights_of(record)) is not None]
    assert identified == [UNKNOWN, OLD, NEW]


def lines(folder: Path) -> list[list[object]]:
    (path,) = folder.glob("*.journal")
    return [json.loads(line[9:]) for line in path.read_bytes().splitlines()]


def test_files_of_earlier_versions_are_read(tmp_path):
    """They have no weights: nothing is compared."""
    write(tmp_path, OLD)
    (path,) = tmp_path.glob("*.journal")
    kept = [record for record in lines(tmp_path) if records.weights_of(record) is None]
    path.write_bytes(b"".join(map(records.encode, kept)))
    journal = read(tmp_path)
    assert journal.weights == UNKNOWN
    assert len(journal.requests[1].tokens) == 1


def test_earlier_versions_read_the_files(tmp_path):
    """They ignore tokens of the request 0, and take no other record for the size of a file."""
    write(tmp_path, OLD, NEW)
    requests: dict[int, records.JournalledRequest] = {}
    for record in lines(tmp_path)[1:]:
        records.replay(record, requests, set())
    assert list(requests) == [1]
    assert len(requests[1].tokens) == 2
    assert {records.previous_of(record) for record in lines(tmp_path)} == {(0, 0)}


def test_weights_that_this_version_does_not_understand_end_the_reading_of_a_file(tmp_path):
    write(tmp_path, OLD)
    (path,) = tmp_path.glob("*.journal")
    with path.open("ab") as file:
        file.write(records.encode(["tokens", [0, "new", {"model.safetensors": 5}]]))
    assert read(tmp_path).weights == OLD


def resumed(tmp_path: Path, scene: Callable[[ResumableRequests, Journal, Idle], object]) -> None:
    """Play a scene with the requests of an earlier master, which its weights OLD have begun, and weights NEW."""
    write(tmp_path / "j", OLD)

    async def play() -> None:
        engine, journal = Idle(), Journal(tmp_path / "j", MODEL)
        generator = Generator(engine, TextCodec(tmp_path), ServedModels(("m",), (), engine), 1 << 20)
        resumable = ResumableRequests(journal, generator, 60, NO_ADAPTERS)
        assert resumable.resume(lambda: NEW) == 1
        scene(resumable, journal, engine)
        for _ in range(20):
            await asyncio.sleep(0)
        ((submission,),) = (engine.submitted,)
        assert (submission.generated, submission.weights) == ((5,), OLD)
        assert journal.weights_of() == NEW
        await resumable.close()

    asyncio.run(play())


def test_a_request_is_continued_with_the_weights_that_computed_its_tokens(tmp_path):
    resumed(tmp_path, lambda resumable, journal, engine: None)


def test_tokens_of_new_requests_do_not_hide_the_weights_of_those_that_wait(tmp_path):
    """A master that is killed before it has continued them would leave them to one that takes them for its own."""

    def scene(resumable: ResumableRequests, journal: Journal, engine: Idle) -> None:
        journal.note(journal.accept(accepted("new")), Token(0, 5))
        journal.flush()
        assert not engine.submitted
        assert journal.weights == OLD

    resumed(tmp_path, scene)
