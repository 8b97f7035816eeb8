"""The middleware around all routes, over an engine that gives one answer."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from orca_master.endpoint.api_keys import digest
from orca_master.endpoint.application import create_app
from orca_master.endpoint.middleware import UNKNOWN_ROUTE
from support.scripted_engine import END, Scripted, make_model

CHAT = "/v1/chat/completions"


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
    ],
)
def test_a_response_is_counted_by_its_route_and_status(tmp_path, method, path, route, status):
    counted = responses(tmp_path, method, path, {"prompt": "a"}, root_path="/root")
    assert counted == [(route, status)]


@pytest.mark.parametrize(
    ("path", "route"), [("/v1/models/other", "/v1/models/{model:path}"), ("/no/such/path", UNKNOWN_ROUTE)]
)
def test_a_response_of_a_middleware_is_counted_by_its_route(tmp_path, path, route):
    assert responses(tmp_path, "GET", path, None, api_keys=frozenset({digest("key")})) == [(route, 401)]
    assert responses(tmp_path, "GET", path, None, allowed_hosts=("other",)) == [(route, 400)]


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
