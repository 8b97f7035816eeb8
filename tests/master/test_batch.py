"""`orca batch` against a server with prepared answers: attempts, final answers, continuation, the end of patience."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from orca_master.commands import batch
from orca_master.commands.batch import MOST_LATE

Answer = Callable[[int], Awaitable[web.Response]]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(batch, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(batch, "MOST_WAIT_SECONDS", 0.02)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@contextlib.contextmanager
def server(answer: Answer, models: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve completions by `answer`, which gets the number of the request; yield the URL and the bodies that came."""
    bodies: list[dict[str, Any]] = []
    started: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    async def completions(request: web.Request) -> web.Response:
        bodies.append(await request.json() | {"key": request.headers.get("Authorization")})
        return await answer(len(bodies) - 1)

    async def list_models(_: web.Request) -> web.Response:
        return web.json_response({"data": []}, status=models)

    async def run() -> None:
        application = web.Application()
        application.router.add_post("/v1/completions", completions)
        application.router.add_get("/v1/models", list_models)
        runner = web.AppRunner(application, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        end = asyncio.Event()
        started.append((f"http://127.0.0.1:{runner.addresses[0][1]}", asyncio.get_running_loop(), end))
        ready.set()
        await end.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(30)
    url, loop, end = started[0]
    try:
        yield url, bodies
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(30)


def write_input(folder: Path, count: int) -> Path:
    path = folder / "in.jsonl"
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": {"prompt": number}}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(folder: Path, url: str, *options: str) -> int:
    return batch.main([str(folder / "in.jsonl"), str(folder / "out.jsonl"), "--url", url, "--no-progress", *options])


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line["response"] for line in lines}


async def ok(number: int) -> web.Response:
    return web.json_response({"number": number}, headers={"x-request-id": f"cmpl-{number}"})


def test_every_request_gets_a_line_with_its_answer(tmp_path, capsys):
    write_input(tmp_path, 40)
    with server(ok) as (url, bodies):
        assert run(tmp_path, f"{url}/v1/", "--concurrency", "7", "--api-key", "secret") == 0
    assert sorted(body["prompt"] for body in bodies) == list(range(40))
    assert {body["key"] for body in bodies} == {"Bearer secret"}
    written = answers(tmp_path)
    assert written.keys() == {str(number) for number in range(40)}
    assert {response["status_code"] for response in written.values()} == {200}
    assert all(response["request_id"] == f"cmpl-{response['body']['number']}" for response in written.values())
    assert "40 requests, 0 of them answered by earlier runs, 0 refused" in capsys.readouterr().out


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_what_the_server_cannot_accept_yet_is_sent_again(tmp_path, status):
    write_input(tmp_path, 3)

    async def full_first(number: int) -> web.Response:
        return await ok(number) if number >= 5 else web.json_response({}, status=status, headers={"Retry-After": "0"})

    with server(full_first) as (url, bodies):
        assert run(tmp_path, url) == 0
    assert len(bodies) == 8
    assert {response["status_code"] for response in answers(tmp_path).values()} == {200}


@pytest.mark.parametrize(("num_late", "status"), [(MOST_LATE - 1, 200), (MOST_LATE, 408)])
def test_a_request_that_takes_too_long_again_and_again_is_refused(tmp_path, monkeypatch, num_late, status):
    """The wait in a queue may have been the reason the first time; a batch must end nevertheless."""
    monkeypatch.setattr(batch, "FIRST_WAIT_SECONDS", 0.01)
    write_input(tmp_path, 1)

    async def late_first(number: int) -> web.Response:
        late = web.json_response({"error": {}}, status=408, headers={"X-Should-Retry": "false"})
        return await ok(number) if number >= num_late else late

    with server(late_first) as (url, bodies):
        assert run(tmp_path, url) == (status != 200)
    assert len(bodies) == MOST_LATE
    assert [response["status_code"] for response in answers(tmp_path).values()] == [status]


def test_patience_begins_with_a_failure(tmp_path):
    """An answer may take longer than the patience; the connection that is lost then is no reason to end."""
    write_input(tmp_path, 1)

    async def slow_first(number: int) -> web.Response:
        if number == 0:
            await asyncio.sleep(1.5)
            return web.Response(status=503, body=b"\xff", content_type="text/plain", charset="utf-8")
        return await ok(number)

    with server(slow_first) as (url, bodies):
        assert run(tmp_path, url, "--patience", "1") == 0
    assert len(bodies) == 2


def test_a_refusal_is_final_and_its_text_is_kept(tmp_path, capsys):
    write_input(tmp_path, 3)

    async def refuse(number: int) -> web.Response:
        return [
            web.json_response({"error": {"message": "no"}}, status=400),
            web.Response(text="<html>", status=500),
            web.json_response({}),
        ][number]

    with server(refuse) as (url, bodies):
        assert run(tmp_path, url, "--concurrency", "1") == 1
    assert len(bodies) == 3
    written = answers(tmp_path)
    assert (written["0"]["status_code"], written["0"]["body"]) == (400, {"error": {"message": "no"}})
    assert (written["1"]["status_code"], written["1"]["body"]) == (500, "<html>")
    assert "2 refused" in capsys.readouterr().out


def test_a_server_that_ends_is_waited_for_and_the_same_command_continues(tmp_path, capsys):
    write_input(tmp_path, 30)

    async def ten(number: int) -> web.Response:
        return await ok(number) if number < 10 else web.json_response({}, status=503)

    with server(ten) as (url, _):
        assert run(tmp_path, url, "--concurrency", "4", "--patience", "1") == 1
    error = capsys.readouterr().err
    assert "gave no answer for 1 s: HTTP 503" in error
    assert "the same command continues" in error
    first = answers(tmp_path)
    assert len(first) == 10
    with server(ok) as (url, bodies):
        assert run(tmp_path, url) == 0
    assert {str(body["prompt"]) for body in bodies} == {str(number) for number in range(30)} - first.keys()
    assert len(bodies) == 20
    assert len(answers(tmp_path)) == 30
    assert {name: answers(tmp_path)[name] for name in first} == first


def test_nobody_listens(tmp_path, capsys):
    write_input(tmp_path, 2)
    assert run(tmp_path, "http://127.0.0.1:9", "--patience", "1") == 1
    assert "http://127.0.0.1:9 gave no answer for 1 s: ClientConnectorError" in capsys.readouterr().err
    assert answers(tmp_path) == {}


@pytest.mark.parametrize("status", [401, 404])
def test_a_server_that_would_refuse_every_request_gets_none(tmp_path, capsys, status):
    write_input(tmp_path, 2)
    with server(ok, models=status) as (url, bodies):
        with pytest.raises(SystemExit, match="2"):
            run(tmp_path, url)
        assert bodies == []
    assert f"/v1/models: HTTP {status}: see --url and --api-key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--url", "nowhere"), "orca batch: error: --url nowhere: "),
        (("--url", "ftp://x"), "orca batch: error: --url ftp://x: "),
        (("--api-key", "a\nb"), "orca batch: error: --api-key: printable ASCII characters are expected"),
        (("--concurrency", "0"), "is not a whole number from 1 to 1024"),
        (("--concurrency", "5000"), "is not a whole number from 1 to 1024"),
        (("--url", "http:///v1"), "orca batch: error: --url http:///v1: http:// or https:// and a host are expected"),
    ],
)
def test_options_that_are_invalid(tmp_path, capsys, options, words):
    write_input(tmp_path, 1)
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, "http://127.0.0.1:9", *options)
    assert words in capsys.readouterr().err


def test_a_url_without_a_scheme_is_one_line(tmp_path, capsys):
    """No progress bar begins before it."""
    write_input(tmp_path, 1)
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, "127.0.0.1:8000")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "orca batch: error: --url 127.0.0.1:8000: http:// or https:// and a host are expected"


def test_the_scheme_of_a_url_has_any_case(tmp_path):
    write_input(tmp_path, 1)
    with server(ok) as (url, _):
        assert run(tmp_path, url.replace("http", "HTTP")) == 0


def test_an_output_of_another_input_is_not_continued(tmp_path, capsys):
    write_input(tmp_path, 3)
    with server(ok) as (url, _):
        assert run(tmp_path, url) == 0
        write_input(tmp_path, 1)
        with pytest.raises(SystemExit, match="2"):
            run(tmp_path, url)
    assert "'1' is no custom_id of" in capsys.readouterr().err


def test_an_input_that_changes_leaves_requests_without_an_answer(tmp_path, capsys):
    write_input(tmp_path, 3)
    lines = (tmp_path / "in.jsonl").read_text().splitlines(keepends=True)
    with server(ok) as (url, _):
        read = batch.read_requests
        calls = iter([lines, lines[:1]])

        def changed(path: Path) -> Any:
            path.write_text("".join(next(calls)))
            return read(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch, "read_requests", changed)
            assert run(tmp_path, url) == 1
    assert "in.jsonl has changed: 2 of its requests have no answer" in capsys.readouterr().err


def test_a_pipe_is_no_input(tmp_path, capsys):
    """It cannot be read twice: the second time no request came, and the run seemed to be complete."""
    os.mkfifo(tmp_path / "in.jsonl")
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, "http://127.0.0.1:9")
    assert "in.jsonl: it is no regular file" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_ends_the_run(tmp_path, capsys, monkeypatch):
    write_input(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(batch.AnswerFile, "add", full)
    with server(ok) as (url, _):
        assert run(tmp_path, url) == 1
    assert "No space left on device; the same command continues" in capsys.readouterr().err
