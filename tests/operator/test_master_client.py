"""The operator's calls to masters, over sockets of this process: plaintext, mutual TLS, changed certificates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from orca_contract.state import StateReport
from orca_operator import names
from orca_operator.certificates import KeyPair, issue, make_authority
from orca_operator.master_client import Credentials, Door, MasterClient, MasterError
from support.orcadeployments import context, report

NOW = datetime.now(UTC)
MASTER = names.dns_name(names.MASTER, "demo", "default")
OPERATOR = names.dns_name(names.OPERATOR, "demo", "default")
AUTHORITY, NEXT = make_authority(NOW), make_authority(NOW)
STATE = report(context())


def server_context(pair: KeyPair, bundle: bytes, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=bundle.decode())
    (folder / "server.pem").write_bytes(pair.certificate + pair.key)
    context.load_cert_chain(folder / "server.pem")
    return context


@contextlib.asynccontextmanager
async def master(context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """A server that answers every request with its state, one request per connection; yields host:port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            head = await reader.readuntil(b"\r\n\r\n")
            allowed = b"Bearer token" in head
            body = json.dumps(STATE.wire()).encode()
            status = b"200 OK" if allowed else b"401 Unauthorized"
            writer.write(
                b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
            )
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def credentials(authority: KeyPair = AUTHORITY, trusted: bytes = AUTHORITY.certificate) -> Credentials:
    pair = issue(authority, [OPERATOR], NOW)
    return Credentials(pair.certificate, pair.key, trusted, MASTER)


async def ask(context: ssl.SSLContext | None, *doors: Credentials | None) -> list[StateReport]:
    client = MasterClient()
    async with asyncio.timeout(30), master(context) as address:
        try:
            return [await client.state(Door(address, "token", found)) for found in doors]
        finally:
            await client.close()


def test_plaintext():
    assert asyncio.run(ask(None, None)) == [STATE]


def test_mutual_tls_by_the_name_of_the_role_not_the_address(tmp_path):
    tls = server_context(issue(AUTHORITY, [MASTER], NOW), AUTHORITY.certificate, tmp_path)
    mine = credentials()
    assert asyncio.run(ask(tls, mine, mine)) == [STATE] * 2


@pytest.mark.parametrize(
    ("server", "client", "words"),
    [
        (issue(AUTHORITY, [names.dns_name("worker", "demo", "default")], NOW), credentials(), "Hostname mismatch"),
        (issue(AUTHORITY, [names.dns_name("master", "demo", "other")], NOW), credentials(), "Hostname mismatch"),
        (issue(NEXT, [MASTER], NOW), credentials(), "certificate verify failed"),
        (issue(AUTHORITY, [MASTER], NOW), credentials(NEXT), "unknown ca|ReadError|disconnected|Broken pipe"),
        (issue(AUTHORITY, [MASTER], NOW), Credentials(b"x", b"y", b"z", MASTER), "the operator's certificate"),
    ],
    ids=["another role", "another deployment", "another authority", "a stranger", "nonsense"],
)
def test_refusals(server, client, words, tmp_path):
    tls = server_context(server, AUTHORITY.certificate, tmp_path)
    with pytest.raises(MasterError, match=words):
        asyncio.run(ask(tls, client))


def test_a_master_with_certificates_does_not_answer_plaintext(tmp_path):
    tls = server_context(issue(AUTHORITY, [MASTER], NOW), AUTHORITY.certificate, tmp_path)
    with pytest.raises(MasterError):
        asyncio.run(ask(tls, None))


def test_changed_credentials_take_effect_with_the_next_call(tmp_path):
    """The master's certificate is one of the next authority: only the newer credentials trust it."""
    both = AUTHORITY.certificate + NEXT.certificate
    tls = server_context(issue(NEXT, [MASTER], NOW), both, tmp_path)
    assert asyncio.run(ask(tls, credentials(trusted=both), credentials(NEXT, NEXT.certificate))) == [STATE] * 2
