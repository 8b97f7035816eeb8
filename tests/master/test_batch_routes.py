"""The routes of /v1/files and /v1/batches with the official client."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest
from orca_master.endpoint.file_routes import WRITTEN_BYTES, parts_of
from orca_master.scheduling.request import ServiceClass
from support.batches import TEMPLATE, Server, created, ended, line, lines_of, play, servers, upload
from support.scripted_engine import END, MODEL, Scripted, make_model

UNKNOWN_FILE, UNKNOWN_BATCH = f"file-{0:032x}", f"batch_{0:032x}"


@pytest.fixture
def server(tmp_path) -> Callable[..., Server]:
    return servers(tmp_path)


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


@pytest.mark.parametrize("metadata", [{"a": "\ud800"}, {"\udfff": "a"}])
def test_metadata_that_no_answer_can_have_is_refused(server, metadata):
    made = server()

    async def scene(client: openai.AsyncOpenAI) -> None:
        body = {
            "input_file_id": await upload(client, line("a")),
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": metadata,
        }
        with pytest.raises(openai.BadRequestError, match=r"metadata: .*a lone surrogate") as refused:
            await client.post(
                "/batches",
                content=json.dumps(body).encode(),
                cast_to=httpx.Response,
                options={"headers": {"content-type": "application/json"}},
            )
        assert refused.value.param == "metadata"
        assert (await client.batches.list()).data == []

    play(made, scene)


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
        assert made.batches.files.room.total == made.num_promised == 0
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
        ({"endpoint": "/v1/moderations"}, "endpoint"),
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
            while made.num_promised < 5:
                await asyncio.sleep(0.01)
            assert await send("one") == 429
            gate.set()
            assert await asyncio.gather(*slow) == [200] * 5
            assert await send("one") == 200

    play(made, scene)


@pytest.mark.parametrize(("size", "num_reads"), [(0, 0), (3, 1), (WRITTEN_BYTES, 1), (WRITTEN_BYTES + 1, 2)])
def test_no_read_follows_the_last_byte_of_a_file(size, num_reads):
    """The next request of the client, with a body above 64 KiB, got no answer if it came during this read."""
    reads: list[int] = []

    class Threads:
        async def run(self, read: Callable[[int], bytes], most: int) -> bytes:
            reads.append(most)
            return read(most)

    async def content() -> bytes:
        parts: Any = parts_of(io.BytesIO(b"x" * size), size, Threads())  # type: ignore[arg-type]
        return b"".join([part async for part in parts])

    assert asyncio.run(content()) == b"x" * size
    assert len(reads) == num_reads
