"""The parent of a request's span in the journal: the next master continues the request under the same trace."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path

import pytest
from orca_contract.state import EngineState
from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.endpoint.generation import Generator
from orca_master.endpoint.resumable import ResumableRequests
from orca_master.endpoint.served_models import ServedModels
from orca_master.engine.messages import Trace
from orca_master.journal import journal as journal_module
from orca_master.journal import records
from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted, JournalledRequest
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.adapter_restorer import NO_ADAPTERS
from support.queue_client import Queue

PARENT = ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=\xfc")


def request(name: str, parent: tuple[str, str]) -> Accepted:
    return Accepted(name, "completions", {"model": "m"}, [array("I", [5])], 20, None, 1, 1_700, "", parent=parent)


def read_again(folder: Path) -> dict[str, Accepted]:
    """Return the requests of a folder by id, as the next master reads them."""
    journal = Journal(folder, "m")
    found = {each.accepted.request_id: each.accepted for each in journal.requests.values()}
    journal.close()
    return found


def test_the_next_master_submits_the_request_with_its_parent(tmp_path):
    async def run() -> None:
        for entry in ("first", "second", "third"):
            engine = Queue()
            generator = Generator(engine, TextCodec(tmp_path), ServedModels(("m",), (), engine), 2**20)
            resumable = ResumableRequests(Journal(tmp_path / "journal", "m"), generator, 60, NO_ADAPTERS)
            if entry == "first":
                body, parent = CompletionRequest(model="m", prompt=[5]), Trace("", "", 1, *PARENT)
                generation = generator.prepare("cmpl-", body, [[5]], 20, None, parent=parent)
                recorder = resumable.accept("completions", body, generation, "")
                assert recorder is not None
                recorder.accept()
            else:
                assert resumable.resume(pb.ModelFacts) == 1
                while not engine.accepted:
                    await asyncio.sleep(0)
                (submission,) = engine.accepted.values()
                assert submission.trace is not None
                assert (submission.trace.traceparent, submission.trace.tracestate) == PARENT
                assert submission.trace.request_id.startswith("cmpl-")
            engine.state = EngineState.STOPPED
            await resumable.close()

    asyncio.run(run())


def test_a_request_that_is_written_again_keeps_its_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 400)
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 1_200)
    journal = Journal(tmp_path, "m")
    old = request("old", PARENT)
    journal.content_of = {journal.accept(old): JournalledRequest(old)}.__getitem__
    first = tmp_path / "00000001.journal"
    while first.exists() and journal.num_bytes < 100_000:
        journal.forget(journal.accept(request("new", PARENT)))
    journal.close()
    assert not first.exists()
    assert read_again(tmp_path)["old"] == old


@pytest.mark.parametrize("parent", [PARENT, ("", "")])
def test_earlier_versions_ignore_the_parent(tmp_path, parent):
    """They know neither another field of a request nor another kind of record, and would ignore the rest of a file."""
    journal = Journal(tmp_path, "m")
    number = journal.accept(request("a", parent))
    journal.close()
    (path,) = tmp_path.glob("*.journal")
    lines = [records.decode(line + b"\n") for line in path.read_bytes().splitlines()]
    (accepted,) = [line for line in lines if line[0] == "accepted"]
    assert accepted == records.accepted(number, request("a", ("", "")))
    others = [line for line in lines if line[0] not in ("journal", "accepted", "stopped")]
    assert all(line[0] == "tokens" and line[1][0] == 0 for line in others)
    assert len(others) == 2 + (parent == PARENT)
    assert read_again(tmp_path) == {"a": request("a", parent)}
