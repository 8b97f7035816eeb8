"""A port accepts no more connections than its process has descriptors for, and says so once per second at most."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
import subprocess
import sys
from unittest import mock

import pytest
from orca_protos import http
from orca_protos.http import probes, serving
from orca_protos.http_connection import BoundedProtocol
from orca_protos.http_limits import ADMIN_LIMITS, PROBE_LIMITS, HttpLimits
from orca_protos.http_listener import HttpListener, _has_bytes
from orca_protos.listening import listen
from support.certificates import sign

HANDSHAKE_BYTE = b"\x16"
"""The first of a record of TLS's handshake."""
REQUEST = b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n"
CROWD = """
import asyncio, logging, resource, sys
from orca_protos.http import probes, serving
from orca_protos.listening import listen
from orca_protos.http_limits import HttpLimits

async def main():
    async def x():
        return 200, "here"
    listener = listen("127.0.0.1", 0)
    async with serving(probes({"/x": x}), listener, HttpLimits()):
        print(listener.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)

logging.basicConfig(level=logging.INFO, format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
asyncio.run(main())
"""
"""A server in a process that may have 128 files open; it ends with its standard input."""


@contextlib.asynccontextmanager
async def port(limits: HttpLimits, tls=None):
    async def x():
        return 200, "here"

    async def stuck():
        await asyncio.Event().wait()
        return 200, "never"

    listener = listen("127.0.0.1", 0)
    number = listener.getsockname()[1]
    async with serving(probes({"/x": x, "/stuck": stuck}), listener, limits, tls):
        yield number


async def ask(number: int, tls=None) -> bytes:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", number, ssl=tls)
        writer.write(REQUEST)
        answer = await reader.read()
        writer.close()
        return answer


def test_idle_connections_make_room(caplog):
    """Ten clients that say nothing on a port of four connections: an eleventh is served all the same."""

    async def run():
        async with port(HttpLimits(max_connections=4, keep_alive_timeout=600)) as number:
            silent = [await asyncio.open_connection("127.0.0.1", number) for _ in range(10)]
            assert b"here" in await ask(number)
            for _, writer in silent:
                writer.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "4 connections are open, the limit" in caplog.text


def test_silent_connections_cost_a_socket_each_and_are_closed_in_time(monkeypatch):
    """None of them gets a protocol: 200 are closed after their time, more than the listener closes in one turn."""
    made = []
    monkeypatch.setattr(
        http, "BoundedProtocol", lambda *arguments: made.append(BoundedProtocol(*arguments)) or made[-1]
    )

    async def run():
        async with port(HttpLimits(keep_alive_timeout=0.5)) as number, asyncio.timeout(60):
            silent = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", number) for _ in range(200)))
            for reader, writer in silent:
                assert await reader.read() == b""
                writer.close()
            assert not made
            assert b"here" in await ask(number)
            assert len(made) == 1

    asyncio.run(run())


def test_at_the_end_silent_connections_are_closed_and_a_request_that_has_come_is_answered():
    async def run():
        listener = listen("127.0.0.1", 0)
        server = HttpListener(listener, HttpLimits(keep_alive_timeout=600), begun := mock.Mock(), None)
        server.start()
        async with asyncio.timeout(60):
            silent, eager = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
            while len(server._silent) < 2:
                await asyncio.sleep(0.01)
            eager[1].write(REQUEST)
            while not any(_has_bytes(peer) for peer in server._silent):  # the event loop has no turn to see them
                pass
            server.close()
            assert await silent[0].read() == b""
            begun.assert_called_once_with(server)
            for _, writer in (silent, eager):
                writer.close()
            await asyncio.gather(*server._connecting.values())

    asyncio.run(run())


def test_a_connection_that_is_ended_in_the_turn_of_its_first_byte_gives_up_its_place():
    async def run():
        listener = listen("127.0.0.1", 0)
        server = HttpListener(listener, HttpLimits(keep_alive_timeout=600), mock.Mock(), None)
        server.start()
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            while not server._silent:
                await asyncio.sleep(0.01)
            server._begin(next(iter(server._silent)))
            server._end(next(iter(server._open)))
            assert await reader.read() == b""
            writer.close()
        assert not server._open
        assert not server._waiting
        assert not server._connecting
        server.close()

    asyncio.run(run())


@pytest.mark.long
def test_the_oldest_busy_connection_makes_room_where_answers_are_short():
    """Ten clients whose answers never end on a port of four connections: an eleventh is served all the same."""

    async def run():
        limits = HttpLimits(
            max_connections=4, write_timeout=600, busy_seconds_when_full=0.1, idle_seconds_when_full=0.1
        )
        async with port(limits) as number:
            busy = []
            for _ in range(10):
                busy.append(await asyncio.open_connection("127.0.0.1", number))
                busy[-1][1].write(b"GET /stuck HTTP/1.1\r\n\r\n")
            assert b"here" in await ask(number)
            async with asyncio.timeout(60):
                assert await busy[0][0].read() == b""  # the oldest one was ended
            for _, writer in busy:
                writer.close()

    asyncio.run(run())


def test_a_stranger_cannot_make_probes_wait():
    """The limits of probe ports: a client that does not read keeps no place, and a request ends its connection."""
    assert PROBE_LIMITS.max_requests_per_connection == 1
    assert PROBE_LIMITS.busy_seconds_when_full + PROBE_LIMITS.idle_seconds_when_full < 1
    assert ADMIN_LIMITS.idle_seconds_when_full < 1
    assert math.isinf(ADMIN_LIMITS.busy_seconds_when_full), "the operator's requests are not cut short"

    async def run():
        async with port(PROBE_LIMITS) as number, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(b"GET /x HTTP/1.1\r\n\r\n" * 2)
            answer = await reader.read()
            writer.close()
            assert answer.count(b"HTTP/1.1 200 OK") == 1
            assert b"connection: close" in answer

    asyncio.run(run())


def test_handshakes_make_room(certificate):
    """Ten strangers to TLS that send no or one byte on a port of four connections: a client is served all the same."""
    server, client = certificate

    async def run():
        limits = HttpLimits(max_connections=4, handshake_timeout=600, idle_seconds_when_full=0.1)
        async with port(limits, server) as number:
            strangers = [await asyncio.open_connection("127.0.0.1", number) for _ in range(10)]
            for _, writer in strangers[::2]:
                writer.write(HANDSHAKE_BYTE)
            assert b"here" in await ask(number, client)
            async with asyncio.timeout(60):
                for reader, _ in strangers[:2]:
                    with contextlib.suppress(ConnectionResetError):  # closed before the listener had read the byte
                        assert await reader.read() == b""
            for _, writer in strangers:
                writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("first", [b"", HANDSHAKE_BYTE])
def test_a_handshake_is_bounded(certificate, first):
    async def run():
        limits = HttpLimits(handshake_timeout=0.1, header_timeout=600, keep_alive_timeout=600)
        async with port(limits, certificate[0]) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(first)
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


@pytest.mark.long
def test_a_crowd_within_128_descriptors():
    """300 silent connections: not one error of asyncio's, few lines of log, and a request is served among them."""
    process = subprocess.Popen(
        [sys.executable, "-c", CROWD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    number = int(process.stdout.readline())

    async def run():
        silent = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", number) for _ in range(300)))
        assert b"here" in await ask(number)
        async with asyncio.timeout(120):
            for reader, writer in silent:
                assert await reader.read() == b""
                writer.close()

    asyncio.run(run())
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "the limit" in log
    assert "Traceback" not in log
    assert "out of system resource" not in log
    assert len(log) < 100_000


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return the TLS contexts of a server and of a client that does not check its certificate."""
    signed, path = sign("port"), tmp_path_factory.mktemp("port") / "server.pem"
    path.write_bytes(signed.pem + signed.key_pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    client = ssl.create_default_context()
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    return server, client


def test_tls(certificate):
    """With a certificate the port speaks HTTPS alone; a stranger to TLS does not disturb it."""

    async def run(server, client):
        async with port(HttpLimits(max_connections=4), server) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(REQUEST)
            with contextlib.suppress(ConnectionResetError):
                assert b"here" not in await reader.read()
            writer.close()
            for _ in range(8):
                assert b"here" in await ask(number, client)

    asyncio.run(run(*certificate))
