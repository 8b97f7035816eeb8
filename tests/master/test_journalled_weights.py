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
from orca_master.journal.records import Accepted, JournalledRequest, Token, TokenLog
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
        assert journal.requests[1].weights == (weights[-1] if weights else None)
        assert len(journal.requests[1].tokens) == len(weights)


def test_a_new_file_has_the_weights_of_the_one_before(tmp_path, monkeypatch):
    """Files are deleted from the oldest on."""
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1)
    write(tmp_path, OLD)
    *_, newest = sorted(tmp_path.glob("*.journal"))
    for path in tmp_path.glob("*.journal"):
        if path != newest:
            path.unlink()
    assert read(tmp_path).weights_of() == OLD


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
    assert journal.requests[1].weights == UNKNOWN
    assert len(journal.requests[1].tokens) == 1


def test_a_file_of_an_earlier_version_has_no_weights_of_the_file_before(tmp_path):
    """An older version served for a while, with weights that nobody knows."""
    write(tmp_path, OLD)
    write(tmp_path, NEW)
    path = max(tmp_path.glob("*.journal"))
    kept = [line for line in path.read_bytes().splitlines(True) if records.weights_of(records.decode(line)) is None]
    path.write_bytes(b"".join(kept))
    assert [request.weights for request in read(tmp_path).requests.values()] == [OLD, UNKNOWN]


def test_earlier_versions_read_the_files(tmp_path):
    """They ignore tokens of the request 0, and take no other record for the size of a file."""
    write(tmp_path, OLD, NEW)
    requests: dict[int, records.JournalledRequest] = {}
    for record in lines(tmp_path)[1:]:
        records.replay(record, requests, set(), UNKNOWN)
    assert list(requests) == [1]
    assert len(requests[1].tokens) == 2
    sizes = [size for record in lines(tmp_path) if (size := records.previous_of(record)) is not None]
    assert sizes == [(0, 0)]


def test_weights_that_this_version_does_not_understand_end_the_reading_of_a_file(tmp_path):
    write(tmp_path, OLD)
    (path,) = tmp_path.glob("*.journal")
    with path.open("ab") as file:
        file.write(records.encode(["tokens", [0, "new", {"model.safetensors": 5}]]))
    assert read(tmp_path).weights_of() == OLD


def play(folder: Path, scene: Callable[[Journal], object]) -> dict[str, pb.ModelFacts | None]:
    """Let a master with the weights NEW continue all requests, after a scene, and kill it.

    Returns the weights that the engine was given for each request.
    """

    async def run() -> Idle:
        engine, journal = Idle(), Journal(folder, MODEL)
        generator = Generator(engine, TextCodec(folder), ServedModels(("m",), (), engine), 1 << 20)
        resumable = ResumableRequests(journal, generator, 60, NO_ADAPTERS)
        num_resumed = resumable.resume(lambda: NEW)
        scene(journal)
        async with asyncio.timeout(60):
            while len(engine.submitted) < num_resumed:
                await asyncio.sleep(0)
        journal.failure = "killed: nothing more is written"
        await resumable.close()
        return engine

    return {each.request_id.partition("-")[0]: each.weights for each in asyncio.run(run()).submitted}


def begin(journal: Journal) -> None:
    """Accept a request with a token while those of the earlier master wait."""
    number = journal.accept(accepted("new"))
    whole, of_others = JournalledRequest(accepted("new"), TokenLog([Token(0, 5)])), journal.content_of
    journal.content_of = lambda other: whole if other == number else of_others(other)
    journal.note(number, Token(0, 5))
    journal.flush()


def test_a_request_is_continued_with_the_weights_that_computed_its_tokens(tmp_path):
    write(tmp_path, OLD)
    for _ in range(2):
        assert play(tmp_path, lambda journal: None) == {"begun": OLD}


def test_tokens_of_new_requests_and_of_those_that_wait_have_their_own_weights(tmp_path):
    """A master with either weights continues only its own after one that is killed while requests wait."""
    write(tmp_path, OLD)
    play(tmp_path, begin)
    assert play(tmp_path, lambda journal: None) == {"begun": OLD, "new": NEW}


def test_a_request_that_is_written_again_keeps_its_weights(tmp_path, monkeypatch):
    write(tmp_path, OLD)
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 400)
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 1_200)
    first = min(tmp_path.glob("*.journal"))

    def scene(journal: Journal) -> None:
        while first.exists():
            begin(journal)

    play(tmp_path, scene)
    assert play(tmp_path, lambda journal: None) == {"begun": OLD, "new": NEW}


def test_a_request_whose_end_is_lost_keeps_the_weights_of_its_tokens(tmp_path, monkeypatch):
    """Other weights had ended it, in a file without its end."""
    write(tmp_path, OLD)
    (path,) = tmp_path.glob("*.journal")
    play(tmp_path, begin)
    path.write_bytes(path.read_bytes()[:-1])
    assert play(tmp_path, lambda journal: None) == {"begun": OLD, "new": NEW}
