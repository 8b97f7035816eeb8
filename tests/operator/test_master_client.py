"""The operator's calls to masters, over sockets of this process: plaintext, mutual TLS, and bad answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from orca_contract import routes
from orca_contract.state import StateReport
from orca_operator import master_client, names
from orca_operator.certificates import KeyPair, issue, make_authority
from orca_operator.master_client import Credentials, Door, MasterClient, MasterError
from support.certificates import sign
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
    """Run a server that answers every request with its state, one request per connection; yield its host:port."""

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


def test_an_intermediate_authority_in_place_of_its_root(tmp_path):
    """As issuers write ca.crt that know their own certificate only; a comment may have any characters."""
    root = sign(common="root")
    middle = sign(issuer=root, common="middle")
    server, client = sign(MASTER, issuer=middle), sign(OPERATOR, issuer=middle)
    bundle = "# Prüfstelle\n".encode() + middle.pem
    tls = server_context(KeyPair(server.pem, server.key_pem), root.pem + middle.pem, tmp_path)
    mine = Credentials(client.pem, client.key_pem, bundle, MASTER)
    assert asyncio.run(ask(tls, mine)) == [STATE]


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


def test_an_operator_without_free_file_descriptors_goes_on(monkeypatch, tmp_path):
    def no_file(_name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    tls = server_context(issue(AUTHORITY, [MASTER], NOW), AUTHORITY.certificate, tmp_path)
    mine = credentials()
    monkeypatch.setattr(os, "memfd_create", no_file)
    with pytest.raises(MasterError, match="Too many open files"):
        asyncio.run(ask(tls, mine))


def test_a_master_with_certificates_does_not_answer_plaintext(tmp_path):
    tls = server_context(issue(AUTHORITY, [MASTER], NOW), AUTHORITY.certificate, tmp_path)
    with pytest.raises(MasterError):
        asyncio.run(ask(tls, None))


def test_changed_credentials_take_effect_with_the_next_call(tmp_path):
    """The master's certificate is one of the next authority: only the newer credentials trust it."""
    both = AUTHORITY.certificate + NEXT.certificate
    tls = server_context(issue(NEXT, [MASTER], NOW), both, tmp_path)
    assert asyncio.run(ask(tls, credentials(trusted=both), credentials(NEXT, NEXT.certificate))) == [STATE] * 2


# -- answers -----------------------------------------------------------------------------------------------------------


async def still_there(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Wait; return whether the client has not hung up."""
    try:
        await asyncio.wait_for(reader.read(1), seconds)
    except TimeoutError:
        return True
    return False


@contextlib.asynccontextmanager
async def answering(*parts: bytes, pause: float = 0.0) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a server that answers every request with `parts`; yield its address and the requests that came."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            requests.append(head + await reader.readexactly(int(length[1]) if length else 0))
            for part in parts:
                writer.write(part)
                await writer.drain()
                if pause and not await still_there(reader, pause):
                    break
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", requests


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """Return an HTTP answer whose end is the end of the connection."""
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n".encode() + body


def call(*parts: bytes, pause: float = 0.0, body: Any = None) -> tuple[StateReport | MasterError, list[bytes]]:
    """Ask a server that sends `parts` for its state, or put `body`; return the outcome and the requests."""

    async def run() -> tuple[StateReport | MasterError, list[bytes]]:
        client = MasterClient()
        async with asyncio.timeout(60), answering(*parts, pause=pause) as (address, requests):
            door = Door(address, "token")
            try:
                if body is None:
                    return await client.state(door), requests
                return await client.put(door, routes.SCHEDULER, body), requests
            except MasterError as error:
                return error, requests
            finally:
                await client.close()

    return asyncio.run(run())


def test_what_is_sent():
    outcome, (request,) = call(answer(json.dumps(STATE.wire()).encode()), body=STATE.scheduler)
    assert outcome == STATE
    assert request.startswith(b"PUT /scheduler HTTP/1.1\r\n")
    assert b"Authorization: Bearer token\r\n" in request
    assert json.loads(request.partition(b"\r\n\r\n")[2]) == STATE.scheduler.wire()


@pytest.mark.parametrize(
    ("parts", "status", "words"),
    [
        ([answer(b'{"detail": "a token, please"}', "401 Unauthorized")], 401, "/state: 401 .*a token, please"),
        ([answer(b"x" * 5000, "503 Service Unavailable")], 503, "/state: 503 x{300}$"),
        ([answer(b"", "302 Found", "Location: http://127.0.0.1:1/state\r\n")], 302, "/state: 302"),
        ([answer(b"")], 200, "the response is not a state report: message: not JSON"),
        ([answer(b"<html>")], 200, "the response is not a state report: message: not JSON"),
        ([answer(b"[1, 2]")], 200, "the response is not a state report: message: "),
        ([answer(b'{"state": "serving"}')], 200, "the response is not a state report: failure: Field required"),
        ([answer(b"[" * 100_000)], 200, "the response is not a state report: message: not JSON"),
        ([answer(b"\xff\xfe")], 200, "the response is not a state report: message: not JSON"),
        ([b"SSH-2.0-OpenSSH\r\n"], 0, "disconnected|illegal|malformed"),
        ([answer(b"abc", headers="Content-Length: 10\r\n")], 0, "closed|peer|RemoteProtocolError"),
        ([answer(b"not gzip", headers="Content-Encoding: gzip\r\n")], 0, "incorrect header check|DecodingError"),
        ([], 0, "disconnected|RemoteProtocolError|ReadError"),
    ],
    ids=["401", "503", "redirect", "empty", "html", "list", "part", "deep", "binary", "ssh", "cut", "gzip", "none"],
)  # fmt: skip
def test_bad_answers(parts, status, words):
    outcome, requests = call(*parts)
    assert isinstance(outcome, MasterError)
    assert outcome.status == status
    assert re.search(words, str(outcome), re.DOTALL), str(outcome)
    assert len(requests) == 1, "no redirect is followed, no call repeated"


def test_a_port_that_nobody_listens_on_is_an_error():
    async def run() -> None:
        client = MasterClient()
        async with answering() as (address, _):
            pass
        try:
            await client.state(Door(address, "token"))
        finally:
            await client.close()

    with pytest.raises(MasterError, match="/state: ") as raised:
        asyncio.run(asyncio.wait_for(run(), 60))
    assert raised.value.status == 0


def test_a_silent_master_is_given_up(monkeypatch):
    monkeypatch.setattr(master_client, "CALL_SECONDS", 0.2)
    outcome, _ = call(b"HTTP/1.1 200 OK\r\n", pause=30)
    assert isinstance(outcome, MasterError)
    assert "ReadTimeout" in str(outcome)


def test_a_master_that_answers_for_ever_is_given_up(monkeypatch):
    """Every byte comes in time; the whole answer does not."""
    monkeypatch.setattr(master_client, "ANSWER_SECONDS", 0.5)
    outcome, _ = call(answer(b"{"), *[b" "] * 3000, pause=0.02)
    assert isinstance(outcome, MasterError)
    assert "no answer within" in str(outcome)


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_an_oversized_answer_is_not_read_to_its_end(status):
    part = b" " * 2**20
    sent = [answer(b"{", status), *[part] * 10_000]
    outcome, _ = call(*sent)
    assert isinstance(outcome, MasterError)
    assert "the response has more than 16777216 bytes" in str(outcome)


def test_an_unknown_field_is_logged_once(caplog):
    body = json.dumps(STATE.wire() | {"weather": "fine"}).encode()

    async def run() -> None:
        client = MasterClient()
        async with answering(answer(body)) as (address, _):
            for _ in range(3):
                assert await client.state(Door(address, "token")) == STATE
        await client.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [record.getMessage().count("weather") for record in caplog.records if "weather" in record.getMessage()] == [
        1
    ]


def test_no_proxy_of_the_environment_sees_the_token(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert call(answer(json.dumps(STATE.wire()).encode()))[0] == STATE


def test_connections_to_a_forgotten_master_are_closed(tmp_path):
    """A deployment that is deleted leaves no client behind; its name is connected anew."""
    tls = server_context(issue(AUTHORITY, [MASTER], NOW), AUTHORITY.certificate, tmp_path)
    mine = credentials()

    async def run() -> None:
        client = MasterClient()
        async with master(tls) as address:
            await client.state(Door(address, "token", mine))
            first = client._secure[MASTER][1]
            await client.forget(MASTER)
            assert first.is_closed
            assert await client.state(Door(address, "token", mine)) == STATE
            second: httpx.AsyncClient = client._secure[MASTER][1]
            assert second is not first
            await client.close()
            assert second.is_closed

    asyncio.run(asyncio.wait_for(run(), 60))
