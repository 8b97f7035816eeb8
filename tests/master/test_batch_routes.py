"""The routes of /v1/files and /v1/batches with the official client, and the runner behind them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from orca_master.batches import batch_store
from orca_master.batches.answer_files import AnswerFiles
from orca_master.batches.config import BatchConfig
from orca_master.batches.input_lines import InputLines
from orca_master.batches.records import BatchRecord
from orca_master.batches.service import Batches, open_batches
from orca_master.endpoint.api_keys import digest
from orca_master.endpoint.application import create_app
from orca_master.endpoint.batch_calls import BatchCalls
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Output, Submission
from orca_master.errors import ConfigurationError, RequestError
from orca_master.scheduling.request import ServiceClass
from support.scripted_engine import END, MODEL, Scripted, ScriptedEngine, make_model

TEMPLATE = "{{ messages | tojson }}"
UNKNOWN_FILE, UNKNOWN_BATCH = f"file-{0:032x}", f"batch_{0:032x}"


def line(custom_id: Any, url: str = "/v1/completions", **body: Any) -> str:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 4} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


class GatedEngine(ScriptedEngine):
    """Answers a submission when `gate` is set; notes what was cancelled."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = asyncio.Event()
        self.released: list[str | None] = []
        self.num_submitted = 0
        self.is_draining = False

    @property
    def status(self) -> EngineStatus:
        status = super().status
        return EngineStatus(
            **{name: getattr(status, name) for name in status.__slots__} | {"draining": self.is_draining}
        )

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        async def answer() -> None:
            await self.gate.wait()
            await ScriptedEngine.submit(self, submission, receive)

        self.num_submitted += 1
        self.task = asyncio.create_task(answer())
        return asyncio.sleep(0)

    def release(self, request_id: str, ended_as: str | None) -> None:
        self.released.append(ended_as)


class Server:
    """A scripted server with batches in a folder, and official clients of it, by key."""

    def __init__(self, model: Path, folder: Path, engine: Any = ScriptedEngine, **limits: Any) -> None:
        self.config = BatchConfig(folder, **limits)
        keys = frozenset({digest("one"), digest("two")})
        self.scripted = Scripted(model, f"hi{END}", engine=engine, batches=self.config, api_keys=keys)
        self.batches: Batches

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[openai.AsyncOpenAI]:
        endpoint = self.scripted.endpoint
        async with self.scripted.template, open_batches(self.config, BatchCalls(endpoint).call) as self.batches:
            endpoint.batches = self.batches
            self.batches.start()
            self.transport = httpx.ASGITransport(create_app(endpoint))
            yield self.client("one")

    def client(self, key: str) -> openai.AsyncOpenAI:
        http = httpx.AsyncClient(transport=self.transport)
        return openai.AsyncOpenAI(base_url="http://localhost/v1", api_key=key, max_retries=0, http_client=http)


@pytest.fixture
def server(tmp_path) -> Callable[..., Server]:
    (tmp_path / "model").mkdir()
    model = make_model(tmp_path / "model", TEMPLATE)
    return lambda engine=ScriptedEngine, **limits: Server(model, tmp_path / "batches", engine, **limits)


def play(made: Server, scene: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    async def run() -> None:
        async with made.running() as client:
            await scene(client)

    asyncio.run(asyncio.wait_for(run(), 60))


async def upload(client: openai.AsyncOpenAI, text: str | bytes, name: str = "in.jsonl") -> str:
    content = text.encode() if isinstance(text, str) else text
    return (await client.files.create(file=(name, content), purpose="batch")).id


async def created(client: openai.AsyncOpenAI, file_id: str, endpoint: Any = "/v1/completions", **more: Any) -> Any:
    return await client.batches.create(
        input_file_id=file_id, endpoint=endpoint, completion_window="24h", **more
    )  # fmt: skip


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    while (batch := await client.batches.retrieve(batch_id)).status in {
        "validating", "in_progress", "finalizing", "cancelling",
    }:  # fmt: skip
        await asyncio.sleep(0.01)
    return batch


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(text) for text in (await client.files.content(file_id)).text.splitlines()]


def test_a_batch_is_answered_line_by_line(server):
    made = server()

    async def scene(client: openai.AsyncOpenAI) -> None:
        text = line("a") + "\n" + line("b", max_tokens=0.5) + line("c", n=2) + line("é\n")
        file = await client.files.create(file=("../../etc/in.jsonl", text.encode()), purpose="batch")
        assert (file.object, file.purpose, file.bytes, file.status) == ("file", "batch", len(text), "processed")
        assert file.filename == "../../etc/in.jsonl"
        assert (await client.files.retrieve(file.id)).to_dict() == file.to_dict()
        batch = await created(client, file.id, metadata={"who": "me"})
        assert (batch.object, batch.endpoint, batch.input_file_id) == ("batch", "/v1/completions", file.id)
        assert (batch.completion_window, batch.expires_at - batch.created_at) == ("24h", 86400)
        done = await ended(client, batch.id)
        assert (done.status, done.metadata, done.errors) == ("completed", {"who": "me"}, None)
        assert done.request_counts.to_dict() == {"total": 4, "completed": 3, "failed": 1}
        assert done.in_progress_at <= done.finalizing_at <= done.completed_at
        assert done.failed_at is None
        answers = {entry["custom_id"]: entry for entry in await lines_of(client, done.output_file_id)}
        assert set(answers) == {"a", "c", "é\n"}
        response = answers["a"]["response"]
        assert (response["status_code"], answers["a"]["error"]) == (200, None)
        assert response["body"]["choices"][0]["text"] == "hi"
        assert response["request_id"] == response["body"]["id"]
        assert len(answers["c"]["response"]["body"]["choices"]) == 2
        [refused] = await lines_of(client, done.error_file_id)
        assert (refused["custom_id"], refused["response"]["status_code"]) == ("b", 400)
        assert refused["response"]["body"]["error"]["param"] == "max_tokens"
        assert len({entry["id"] for entry in [*answers.values(), refused]}) == 4
        output = await client.files.retrieve(done.output_file_id)
        assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
        assert {entry.service_class for entry in made.scripted.engine.submissions} == {ServiceClass.BATCH}
        assert not list(made.config.folder.parent.glob("etc")), "names of clients are no paths"

    play(made, scene)


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "chat.completion"),
        ("/v1/responses", {"input": "x"}, "response"),
    ],
)
def test_the_routes_of_batches(server, endpoint, body, kind):
    async def scene(client: openai.AsyncOpenAI) -> None:
        request = {"custom_id": "1", "method": "POST", "url": endpoint, "body": {"model": MODEL} | body}
        batch = await created(client, await upload(client, json.dumps(request)), endpoint)
        [answer] = await lines_of(client, (await ended(client, batch.id)).output_file_id)
        assert answer["response"]["body"]["object"] == kind

    play(server(), scene)


def test_invalid_lines_become_error_lines(server):
    bad = [
        "{",
        "7",
        "[" * 5000,
        json.dumps({"method": "POST"}),
        line(""),
        line("a", "/v1/responses"),
        line("stream", stream=True),
        line("same"),
        line("same"),
        json.dumps({"custom_id": "get", "method": "GET", "url": "/v1/completions", "body": {}}),
        json.dumps({"custom_id": "list", "method": "POST", "url": "/v1/completions", "body": []}),
    ]

    async def scene(client: openai.AsyncOpenAI) -> None:
        text = "\n".join(entry.rstrip("\n") for entry in bad).encode() + b"\n\xff\xfe\n" + line("last").encode()
        batch = await created(client, await upload(client, text))
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 2, 11)
        assert [entry["custom_id"] for entry in await lines_of(client, done.output_file_id)] == ["same", "last"]
        errors = await lines_of(client, done.error_file_id)
        assert all(entry["response"] is None and entry["error"]["code"] == "invalid_line" for entry in errors)
        messages = [(entry["custom_id"], entry["error"]["message"].partition(":")[0]) for entry in errors]
        assert messages == [
            (None, "the line is not valid JSON"),
            (None, "an object with custom_id, method, url and body is expected"),
            (None, "the line is not valid JSON"),
            (None, "custom_id"),
            (None, "custom_id"),
            ("a", "url"),
            ("stream", "body.stream"),
            ("same", "custom_id"),
            ("get", "method"),
            ("list", "body"),
            (None, "the line is not valid JSON"),
        ]

    play(server(concurrency=1), scene)


def test_files_and_batches_belong_to_the_key(server):
    made = server()

    async def scene(client: openai.AsyncOpenAI) -> None:
        file_id = await upload(client, line("a"))
        batch = await created(client, file_id)
        done = await ended(client, batch.id)
        other = made.client("two")
        assert (await other.files.list()).data == []
        assert (await other.batches.list()).data == []
        for call in (
            other.files.retrieve(file_id),
            other.files.content(done.output_file_id),
            other.files.delete(file_id),
            other.batches.retrieve(batch.id),
            other.batches.cancel(batch.id),
            client.files.retrieve(UNKNOWN_FILE),
            client.files.retrieve("..%2Flock"),
            client.batches.retrieve(UNKNOWN_BATCH),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        with pytest.raises(openai.BadRequestError, match="input_file_id"):
            await created(other, file_id)
        with pytest.raises(openai.BadRequestError, match="purpose batch"):
            await created(client, done.output_file_id)

    play(made, scene)


def test_lists_are_pages(server):
    async def scene(client: openai.AsyncOpenAI) -> None:
        file_ids = [await upload(client, line("a"), f"{number}") for number in range(3)]
        batches = [(await ended(client, (await created(client, name)).id)).id for name in file_ids]
        assert {entry.id async for entry in client.batches.list(limit=2)} == set(batches)
        page = await client.batches.list(limit=2)
        assert page.has_more
        assert len(page.data) == 2
        inputs = [entry.id async for entry in client.files.list(purpose="batch", limit=1)]
        assert set(inputs) == set(file_ids)
        assert [entry.id async for entry in client.files.list(purpose="batch", order="asc")] == inputs[::-1]
        assert len((await client.files.list()).data) == 6
        for call in (client.files.list(after="file-x"), client.batches.list(after="x"), client.batches.list(limit=0)):
            with pytest.raises(openai.BadRequestError):
                await call
        assert (await client.files.delete(file_ids[0])).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(file_ids[0])

    play(server(), scene)


@pytest.mark.parametrize(
    ("limits", "text", "message"),
    [
        ({"max_files": 0}, line("a"), "--max-batch-files"),
        ({"max_bytes": 50}, line("a"), "--max-batch-bytes"),
        ({"max_lines": 1}, line("a") + line("b"), "--max-batch-lines"),
        ({"max_line_bytes": 50}, line("a") + line("b"), "line 1 exceeds 50 bytes .--max-batch-line-bytes"),
        ({}, "\n \n", "it has no line"),
        ({}, "", "it has no line"),
    ],
)
def test_files_are_bounded(server, limits, text, message):
    made = server(**limits)

    async def scene(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match=message):
            await upload(client, text)
        assert made.batches.files.num_bytes == made.batches.files.num_promised == 0
        assert not list((made.config.folder / "files").iterdir()), "nothing is left of it"

    play(made, scene)


@pytest.mark.parametrize("num_bytes", [1001, 200_000])
def test_a_file_beyond_the_limit_is_refused(server, num_bytes):
    async def scene(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.APIStatusError, match="--max-batch-file-bytes") as refused:
            await upload(client, "x" * num_bytes)
        assert refused.value.status_code == 413

    play(server(max_file_bytes=1000), scene)


@pytest.mark.parametrize(
    ("headers", "content", "message"),
    [
        ({"content-type": "application/json"}, b"{}", "multipart/form-data"),
        ({"content-type": "multipart/form-data"}, b"", "multipart/form-data"),
        ({"content-type": f"multipart/form-data; boundary={'x' * 500}"}, b"", "multipart/form-data"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"junk", "multipart/form-data"),
        ({"content-type": "multipart/form-data; boundary=x"}, b'--x\r\nA: b\r\n\r\n1\r\n--x--\r\n', "unknown"),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--x--\r\n',
            '"batch" is expected',
        ),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n',
            "file: this field of the form is missing",
        ),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n{}\r\n--x--\r\n',
            "purpose: this field of the form is missing",
        ),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n{}',
            "not complete",
        ),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            2 * b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' + b"--x--\r\n",
            "twice",
        ),
    ],
)  # fmt: skip
def test_invalid_forms_are_refused(server, headers, content, message):
    made = server()

    async def scene(client: openai.AsyncOpenAI) -> None:
        async with httpx.AsyncClient(transport=made.transport) as http:
            keys = {"authorization": "Bearer one"}
            answer = await http.post("http://localhost/v1/files", headers=keys | headers, content=content)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
        assert not list((made.config.folder / "files").iterdir())

    play(made, scene)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {}}, "output_expires_after"),
    ],
)
def test_invalid_batches_are_refused(server, body, field):
    async def scene(client: openai.AsyncOpenAI) -> None:
        options = {"input_file_id": await upload(client, line("a")), "endpoint": "/v1/completions"}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.post("/batches", body=options | {"completion_window": "24h"} | body, cast_to=object)
        assert refused.value.param == field

    play(server(), scene)


def test_a_server_without_a_folder_names_the_option(tmp_path):
    async def scene() -> None:
        scripted = Scripted(make_model(tmp_path, TEMPLATE), END)
        async with scripted as client:
            for call in (
                upload(client, line("a")),
                client.files.list(),
                client.files.delete(UNKNOWN_FILE),
                client.batches.list(),
                created(client, UNKNOWN_FILE),
                client.batches.cancel(UNKNOWN_BATCH),
            ):
                with pytest.raises(openai.NotFoundError, match="--batch-directory"):
                    await call

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_cancelled_batch_keeps_its_answers(server):
    made = server(GatedEngine, concurrency=2)

    async def scene(client: openai.AsyncOpenAI) -> None:
        engine = made.scripted.engine
        file_id = await upload(client, line("a") + line("b") + line("c"))
        batch, queued = await created(client, file_id), await created(client, file_id)
        while made.batches.runner.places.num_taken < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(openai.BadRequestError, match="an unfinished batch uses this file"):
            await client.files.delete(file_id)
        await client.batches.cancel(queued.id)
        assert (await ended(client, queued.id)).status == "cancelled", "the other one need not end before"
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        done = await ended(client, batch.id)
        assert (done.status, done.output_file_id, done.error_file_id) == ("cancelled", None, None)
        assert engine.released == ["abort", "abort"]
        assert (await client.batches.cancel(batch.id)).status == "cancelled"
        assert made.batches.files.num_promised == 0
        await client.files.delete(file_id)

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
        while made.batches.runner.places.num_taken < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert made.scripted.engine.num_submitted == 3
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
        while made.batches.runner.places.num_taken < 1:
            await asyncio.sleep(0.01)
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
        while first.batches.runner.places.num_taken < 2:
            await asyncio.sleep(0.01)
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
        assert second.batches.files.num_bytes == sizes
        assert len(list((second.config.folder / "files").glob("*.jsonl"))) == 2

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


def test_a_batch_expires(server):
    made = server(GatedEngine)

    async def scene(client: openai.AsyncOpenAI) -> None:
        file = made.batches.files.get(digest("one"), await upload(client, line("a") + line("b")))
        assert file is not None
        batch = made.batches.batches.new(digest("one"), "/v1/completions", file, {})
        batch.expires_at = batch.created_at
        made.batches.files.promise(digest("one"), 2)
        made.batches.batches.add(batch)
        made.batches.runner.wake()
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.failed) == ("expired", 2)
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
        assert made.batches.files.num_promised == 0

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


@pytest.mark.parametrize("status", ["finalizing", "completed"])
def test_an_end_that_cannot_be_stored_is_tried_again(server, monkeypatch, status):
    monkeypatch.setattr("orca_master.batches.batch_run.END_SECONDS", 0.01)
    failing = FailingWrites(monkeypatch, status, 3)

    async def scene(client: openai.AsyncOpenAI) -> None:
        done = await ended(client, (await created(client, await upload(client, line("a")))).id)
        assert (done.status, done.errors, done.failed_at) == ("completed", None, None)
        assert len(await lines_of(client, done.output_file_id)) == 1
        assert made.batches.files.num_promised == 0

    made = server()
    play(made, scene)
    assert failing.num_left == 0


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
        assert made.batches.files.num_promised == 0
        monkeypatch.setattr(batch_store, "write_record", write)
        assert (await ended(client, (await created(client, file.id)).id)).status == "completed"

    play(made, scene)


def test_a_cancellation_that_cannot_be_stored_changes_nothing(server, monkeypatch):
    """Otherwise the next server would answer a batch that was shown as cancelled."""
    made = server(GatedEngine)
    FailingWrites(monkeypatch, "cancelling", 1)

    async def scene(client: openai.AsyncOpenAI) -> None:
        batch = await created(client, await upload(client, line("a")))
        while made.batches.runner.places.num_taken < 1:
            await asyncio.sleep(0.01)
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
        num_bytes = made.batches.files.num_bytes
        with monkeypatch.context() as patch:
            patch.setattr(batch_store, "write_record", full)
            patch.setattr("orca_master.batches.file_store.write_record", full)
            calls = (upload(client, line("b")), created(client, file_id), client.batches.cancel(batch.id))
            for call in calls:
                with pytest.raises(openai.InternalServerError, match="No space left on device") as refused:
                    await call
                assert refused.value.status_code == 503
        assert (made.batches.files.num_bytes, made.batches.files.num_promised) == (num_bytes, 2)
        names = {path.stem for path in (made.config.folder / "files").iterdir()}
        assert file_id in names
        assert len(names) <= 3, "the input and the answers of the batch"

    play(made, scene)


def test_content_that_is_gone_is_503_and_a_range_is_ignored(server):
    made = server()

    async def scene(client: openai.AsyncOpenAI) -> None:
        file_id = await upload(client, line("a") * 20_000)
        content = await client.files.content(file_id, extra_headers={"range": "bytes=x"})
        assert content.text == line("a") * 20_000
        made.batches.files.path(file_id).unlink()
        with pytest.raises(openai.InternalServerError, match="No such file") as gone:
            await client.files.content(file_id)
        assert gone.value.status_code == 503
        made.scripted.endpoint.batches = None
        with pytest.raises(openai.InternalServerError, match="the folder of --batch-directory cannot be used"):
            await client.files.list()

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
            made.batches.batches.add(made.batches.batches.new(digest("one"), "/v1/completions", file, {}))
        with pytest.raises(RequestError, match="half of them those of one API key"):
            made.batches.batches.new(digest("one"), "/v1/completions", file, {})
        made.batches.batches.new(digest("two"), "/v1/completions", file, {})

    play(made, scene)


def test_a_key_has_four_uploads_at_a_time(server):
    made = server()

    async def body(gate: asyncio.Event) -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x'
        await gate.wait()
        yield b'\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n{}\r\n--x--\r\n'

    async def scene(client: openai.AsyncOpenAI) -> None:
        gate = asyncio.Event()
        kind = {"content-type": "multipart/form-data; boundary=x"}

        async def send(key: str) -> int:
            headers = kind | {"authorization": f"Bearer {key}"}
            return (await http.post("http://localhost/v1/files", headers=headers, content=body(gate))).status_code

        async with httpx.AsyncClient(transport=made.transport) as http:
            slow = [asyncio.create_task(send(key)) for key in ("one", "one", "one", "one", "two")]
            while made.batches.files.num_promised < 5:
                await asyncio.sleep(0.01)
            assert await send("one") == 429
            gate.set()
            assert await asyncio.gather(*slow) == [200] * 5
            assert await send("one") == 200

    play(made, scene)


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


def test_what_cannot_be_deleted_keeps_no_batch_waiting(server, monkeypatch):
    """The runner goes on after errors of the disk, and after unexpected ones."""
    made = server(seconds=-1.0)
    errors = iter([OSError(5, "Input/output error"), ValueError("unexpected")])

    def fail(path: Path, missing_ok: bool = False) -> None:
        raise OSError(5, "Input/output error")

    async def scene(client: openai.AsyncOpenAI) -> None:
        file_id = await upload(client, line("a"))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", fail)
            made.batches.runner.wake()
            await asyncio.sleep(0.05)
            assert made.batches.files.get(digest("one"), file_id) is not None, "it is kept, and tried again later"
        with monkeypatch.context() as patch:
            patch.setattr(made.batches.files, "delete_old", lambda used: _raise(next(errors)))
            for _ in range(2):
                made.batches.runner.wake()
                await asyncio.sleep(0.05)
        made.batches.runner.wake()
        while (await client.files.list()).data:
            await asyncio.sleep(0.01)

    play(made, scene)
    assert next(errors, None) is None


def _raise(error: Exception) -> None:
    raise error


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
    record = BatchRecord(UNKNOWN_BATCH, digest("one"), "/v1/completions", next(ids), 1, 1, 1, next(ids), next(ids))
    fields = record.fields() | change
    (made.config.folder / "batches").mkdir(parents=True)
    (made.config.folder / "batches" / f"{fields['id']}.json").write_text(json.dumps(fields))

    async def scene(client: openai.AsyncOpenAI) -> None:
        assert (await client.batches.list()).data == []
        batch = await created(client, await upload(client, line("a")))
        assert (await ended(client, batch.id)).status == "completed"

    play(made, scene)


def test_a_folder_has_one_master(server, monkeypatch):
    monkeypatch.setattr("orca_master.journal.folder_lock.LOCK_SECONDS", 0.0)

    async def scene(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(ConfigurationError, match=r"--batch-directory .* another master uses this folder"):
            async with server().running():
                pass

    play(server(), scene)


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
