"""The admin port over an engine without pipelines: clients that leave, and what is open without the token."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import httpx
import pytest
from orca_master.endpoint.admin import create_admin_app
from orca_master.endpoint.admin_token import AdminToken
from orca_master.engine.config import EngineConfig
from orca_master.journal.status import no_journal


def admin_app(folder):
    (folder / "token").write_text("secret")
    return create_admin_app(SimpleNamespace(config=EngineConfig()), AdminToken(folder / "token"), no_journal)


@pytest.mark.parametrize("path", ["/scheduler", "/topology"])
def test_a_client_that_leaves_within_its_body_raises_nothing(tmp_path, caplog, path):
    """The server would log a traceback."""
    received = iter([{"type": "http.request", "body": b"{", "more_body": True}])
    sent = []

    async def receive():
        return next(received, {"type": "http.disconnect"})

    async def send(message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "PUT", "path": path, "query_string": b"",
        "headers": [(b"authorization", b"Bearer secret")],
    }  # fmt: skip
    with caplog.at_level(logging.INFO):
        asyncio.run(admin_app(tmp_path)(scope, receive, send))
    assert sent[0]["status"] == 400
    assert not caplog.records


@pytest.mark.parametrize("path", ["/state", "/openapi.json", "/docs", "/redoc"])
def test_nothing_is_open_without_the_token(tmp_path, path):
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(admin_app(tmp_path))
        async with httpx.AsyncClient(transport=transport, base_url="http://master") as client:
            return await client.get(path)

    refused = asyncio.run(ask())
    expected = (401, "Bearer") if path == "/state" else (404, None)
    assert (refused.status_code, refused.headers.get("WWW-Authenticate")) == expected
