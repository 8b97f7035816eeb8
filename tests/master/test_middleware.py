"""The middleware around all routes, over an engine that gives one answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from typing import Any

import httpx
import pytest
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.validation import check_body
from orca_master.endpoint.api_keys import digest
from orca_master.endpoint.application import create_app
from orca_master.endpoint.middleware import REQUEST_ID, UNKNOWN_ROUTE
from orca_master.errors import RequestError
from support.scripted_engine import END, MODEL, Scripted, make_model

CHAT = "/v1/chat/completions"
MESSAGE = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("POST", "/v1/completions", "/v1/completions", 200),
        ("POST", "/root/v1/completions", "/v1/completions", 200),
        ("GET", "/v1/models/other/name", "/v1/models/{model:path}", 404),
        ("GET", "/v1/responses/resp_1", "/v1/responses/{response_id}", 404),
        ("POST", CHAT, CHAT, 400),
        ("DELETE", CHAT, CHAT, 405),
        ("GET", "/metrics", "/metrics", 200),
        ("GET", "/docs", "/docs", 200),
        ("GET", "/no/such/path", UNKNOWN_ROUTE, 404),
        ("POST", "/v1/completions/", UNKNOWN_ROUTE, 404),
    ],
)
def test_a_response_is_counted_by_its_route_and_status(tmp_path, method, path, route, status):
    counted = responses(tmp_path, method, path, {"prompt": "a"}, root_path="/root")
    assert counted == [(route, status)]


def test_a_root_path_causes_no_warning(tmp_path, recwarn):
    assert responses(tmp_path, "GET", "/root/docs", None, root_path="/root") == [("/docs", 200)]
    assert not [warning for warning in recwarn if "root_path" in str(warning.message)]


@pytest.mark.parametrize(
    ("path", "route"), [("/v1/models/other", "/v1/models/{model:path}"), ("/no/such/path", UNKNOWN_ROUTE)]
)
def test_a_response_of_a_middleware_is_counted_by_its_route(tmp_path, path, route):
    assert responses(tmp_path, "GET", path, None, api_keys=frozenset({digest("key")})) == [(route, 401)]
    assert responses(tmp_path, "GET", path, None, allowed_hosts=("other",)) == [(route, 400)]


@pytest.mark.parametrize(("path", "kind"), [("/v1/completions", "server_error"), ("/v1/messages", "api_error")])
def test_an_internal_error_has_the_id_of_its_request_in_the_response_and_in_the_log(tmp_path, caplog, path, kind):
    """The middleware around the routes sees it; the exception is raised again, which the server logs."""

    async def run() -> None:
        scripted = Scripted(make_model(tmp_path, "{{ messages[0].content }}"), END, log_requests=True)
        scripted.engine.submit = unable
        for reraises in (False, True):
            transport = httpx.ASGITransport(create_app(scripted.endpoint), raise_app_exceptions=reraises)
            async with scripted.template, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                asking = client.post(path, json=body, headers={REQUEST_ID: "mine"})
                if reraises:
                    with pytest.raises(ZeroDivisionError):
                        await asking
                    continue
                answer = await asking
                assert (answer.status_code, answer.headers[REQUEST_ID]) == (500, "mine")
                assert answer.json()["error"]["type"] == kind
                assert answer.json()["error"]["message"] == "internal error: ZeroDivisionError"
        assert scripted.engine.responses == [(path, 500)] * 2

    def unable(*_: object) -> None:
        raise ZeroDivisionError

    body = {"model": MODEL, "prompt": "a"} if kind == "server_error" else {**MESSAGE, "model": MODEL}
    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(run(), 60))
    assert len(re.findall(rf"POST {path} 500 .* id mine", caplog.text)) == 2


@pytest.mark.parametrize(("path", "kind"), [("/v1/completions", "server_error"), ("/v1/messages", "overloaded_error")])
def test_a_request_that_the_end_of_the_server_cancels_is_refused(tmp_path, caplog, path, kind):
    """The server cancels requests whose bodies have not come."""

    async def run() -> None:
        scripted = Scripted(make_model(tmp_path, "{{ messages[0].content }}"), END, log_requests=True)
        waits = asyncio.Event()

        async def endless():
            yield b"{"
            waits.set()
            await asyncio.Event().wait()

        transport = httpx.ASGITransport(create_app(scripted.endpoint))
        async with scripted.template, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"Content-Type": "application/json", REQUEST_ID: "mine"}
            asking = asyncio.create_task(client.post(path, content=endless(), headers=headers))
            await waits.wait()
            asking.cancel()
            answer = await asking
        assert (answer.status_code, answer.headers[REQUEST_ID]) == (503, "mine")
        assert answer.json()["error"]["type"] == kind
        assert answer.json()["error"]["message"] == "the server is shutting down"
        assert scripted.engine.responses == [(path, 503)]

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(run(), 60))
    assert re.search(rf"POST {path} 503 .* id mine", caplog.text)


def test_a_page_of_another_origin_reads_whether_and_when_to_retry(tmp_path):
    """Browsers hide header fields that the response does not name: official clients would repeat the request."""

    async def ask() -> httpx.Response:
        scripted = Scripted(make_model(tmp_path, ""), END)
        transport = httpx.ASGITransport(create_app(scripted.endpoint))
        async with scripted.template, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"Origin": "http://page", "X-Request-Deadline": "1e-9"}
            return await client.post("/v1/completions", json={"prompt": "a"}, headers=headers)

    late = asyncio.run(ask())
    assert (late.status_code, late.headers["X-Should-Retry"]) == (408, "false")
    exposed = late.headers["Access-Control-Expose-Headers"].split(", ")
    assert {"X-Should-Retry", "Retry-After", REQUEST_ID} <= set(exposed)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/messages"])
def test_a_refusal_without_a_key_names_the_scheme(tmp_path, path):
    """RFC 9110, section 15.5.2: some HTTP clients fail without the field."""

    async def ask() -> httpx.Response:
        scripted = Scripted(make_model(tmp_path, ""), END, api_keys=frozenset({digest("key")}))
        transport = httpx.ASGITransport(create_app(scripted.endpoint))
        async with scripted.template, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    refused = asyncio.run(ask())
    assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")


def responses(folder, method: str, path: str, body: object, **options) -> list[tuple[str, int]]:
    """Send a request, and return what the engine has counted."""

    async def ask() -> list[tuple[str, int]]:
        scripted = Scripted(make_model(folder, ""), f"hi{END}", **options)
        async with scripted.template:
            transport = httpx.ASGITransport(create_app(scripted.endpoint))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                await client.request(method, path, json=body)
        return scripted.engine.responses

    return asyncio.run(ask())


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP, identity"])
def test_a_compressed_body_is_refused_on_all_routes(tmp_path, coding):
    """It was refused as invalid JSON, or as a form with a mistake."""
    app = create_app(Scripted(make_model(tmp_path, "{{ messages[0].content }}"), END).endpoint)
    paths = [route.path for route in app.routes if "POST" in (getattr(route, "methods", None) or ())]
    assert len(paths) > 10

    async def run() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in paths:
                headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
                answer = await client.post(path, content=gzip.compress(b"{}"), headers=headers)
                assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity"), path
                error = answer.json()["error"]
                assert (error["type"], error["message"]) == (
                    "invalid_request_error",
                    f"Content-Encoding: {coding!r} is not supported: send the body uncompressed, without this header",
                )
            sound = await client.post("/tokenize", json={"prompt": "a"}, headers={"Content-Encoding": "identity"})
            assert sound.status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("header", "of_body", "expected"),
    [
        (None, "mine.1-a_B", "mine.1-a_B"),
        ("first", "mine", "first"),
        ("a b", "mine", "mine"),
        (None, None, "[0-9a-f]{32}"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", CHAT, "/v1/embeddings", "/v1/score"])
def test_a_request_has_the_id_of_its_header_else_of_its_body(tmp_path, caplog, path, header, of_body, expected):
    """In the response, also a refusing one, and in the log. vLLM, too, prefers the header."""

    pair = {"text_1": "a", "text_2": "b"}
    bodies = {"/v1/completions": {"prompt": "a"}, CHAT: MESSAGE, "/v1/embeddings": {"input": "a"}, "/v1/score": pair}
    body: dict[str, Any] = bodies[path]
    headers = {} if header is None else {REQUEST_ID: header}

    async def run() -> None:
        scripted = Scripted(make_model(tmp_path, "{{ messages[0].content }}"), END, log_requests=True)
        transport = httpx.ASGITransport(create_app(scripted.endpoint))
        async with scripted.template, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for model, status in ((MODEL, 200), ("other", 404)):
                sent = {**body, "request_id": of_body, "model": model}
                answer = await client.post(path, json=sent, headers=headers)
                assert answer.status_code == status
                assert re.fullmatch(expected, answer.headers[REQUEST_ID])

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(run(), 60))
    assert len(re.findall(rf"POST {path} (?:200|404) .* id {expected}$", caplog.text, re.MULTILINE)) == 2


@pytest.mark.parametrize("request_id", ["a b", "", "a" * 129, "é", 1, "a\n"])
def test_an_id_that_the_log_cannot_have_is_refused(request_id):
    for kind, prompt in (("completion", {"prompt": "a"}), ("chat", MESSAGE), ("embedding", {"input": "a"})):
        with pytest.raises(RequestError, match=r"^request_id: ") as refused:
            check_body(kind, json.dumps({**prompt, "request_id": request_id}).encode(), Lengths())
        assert refused.value.field == "request_id"
