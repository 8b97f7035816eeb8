"""Which names a server answers to."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from orca_master.endpoint.allowed_hosts import AllowedHosts
from orca_master.endpoint.config import LOOPBACK_NAMES, default_hosts


@pytest.mark.parametrize(
    ("listen", "hosts"),
    [
        ("127.0.0.1", (*LOOPBACK_NAMES, "127.0.0.1")),
        ("127.8.8.8", (*LOOPBACK_NAMES, "127.8.8.8")),
        ("::1", (*LOOPBACK_NAMES, "::1")),
        ("localhost", (*LOOPBACK_NAMES, "localhost")),
        ("0.0.0.0", ()),
        ("::", ()),
        ("10.0.0.1", ()),
        ("a.example", ()),
    ],
)
def test_a_loopback_address_has_loopback_names(listen, hosts):
    assert default_hosts(listen) == hosts


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 204),
        ("LocalHost:8000", 204),
        ("127.0.0.1:8000", 204),
        ("[::1]:8000", 204),
        ("localhost.", 204),
        ("api.example", 204),
        ("attacker.example", 400),
        ("localhost.attacker.example", 400),
        ("localhost@attacker.example", 400),
        ("attacker.example/localhost", 400),
        ("[::1", 400),
        ("", 400),
    ],
)
def test_hosts(host, status):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def ask():
        transport = httpx.ASGITransport(AllowedHosts(app, (*default_hosts("127.0.0.1"), "API.example")))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get("/", headers={"Host": host})

    answer = asyncio.run(ask())
    assert answer.status_code == status
    assert status == 204 or answer.json()["error"]["type"] == "invalid_request_error"
