"""A client can make a connection neither keep nor wait for more than its bounds; sizes are asserted by bytes kept."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
import uvicorn
from orca_protos.http_connection import MAX_PIPELINED, BoundedProtocol
from orca_protos.http_limits import HttpLimits
from uvicorn.server import ServerState

CHUNK = 256 << 10
"""What one read of asyncio's transports brings at most."""
LIMITS = HttpLimits()
TINY = HttpLimits(
    max_header_bytes=1024, max_header_count=8, header_timeout=0.05, keep_alive_timeout=0.05, write_timeout=0.05
)


class Peer(asyncio.Transport):
    """The other end of a connection: what was written to it, and how the connection ended."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unread = 0
        self.paused = self.half_closed = False
        self.ended = asyncio.Event()
        self.connection: BoundedProtocol | None = None

    def write(self, data) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.ended.is_set()

    def close(self) -> None:
        if not self.ended.is_set() and self.connection is not None:
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)
        self.ended.set()

    abort = close

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and message of an answer in OpenAI's error shape."""
        head, _, body = self.written.partition(b"\r\n\r\n")
        assert b"\r\nconnection: close" in head
        return int(head.split()[1]), json.loads(body)["error"]["message"]


class Registered:
    """What the connection said about itself."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note_waiting(self, _) -> None:
        self.notes.append("waiting")

    def note_busy(self, _) -> None:
        self.notes.append("busy")

    def note_closed(self, _) -> None:
        self.notes.append("closed")


async def hello(scope, receive, send):
    """Read the body at /read only, answer at /wait only once the client has left."""
    if scope["path"] == "/read":
        while (await receive()).get("more_body"):
            pass
    if scope["path"] == "/wait":
        while (await receive())["type"] != "http.disconnect":
            pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def connect(limits=LIMITS) -> tuple[BoundedProtocol, Peer]:
    config = uvicorn.Config(hello, ws="none", lifespan="off", log_config=None, log_level="error", access_log=False)
    config.load()
    connection, peer = BoundedProtocol(config, ServerState(), limits, Registered()), Peer()
    peer.connection = connection
    connection.connection_made(peer)
    return connection, peer


async def client_that_waits() -> tuple[socket.socket, asyncio.Task[None]]:
    """Return a client on a socket, and the task of its request, which gets no answer."""
    loop = asyncio.get_running_loop()
    connection, _ = connect()
    server, client = socket.socketpair()
    client.setblocking(False)
    await loop.connect_accepted_socket(lambda: connection, server)
    await loop.sock_sendall(client, b"GET /wait HTTP/1.1\r\n\r\n")
    while not connection.tasks:
        await asyncio.sleep(0)
    (waiting,) = connection.tasks
    return client, waiting


async def flood(connection, peer, start: bytes, again: bytes, total: int = 64 << 20) -> int:
    """Send `again` without end in reads of 256 KiB; return how many bytes were taken before the connection closed."""
    connection.data_received(start)
    block = again * (CHUNK // len(again))
    taken = len(start)
    while taken < total and not (peer.half_closed or peer.ended.is_set() or peer.paused):
        connection.data_received(block)
        taken += len(block)
        await asyncio.sleep(0)
    return taken


@pytest.mark.parametrize(
    ("start", "again", "status", "message"),
    [
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n", 431, "more than 256 header fields"),
        (b"GET / HTTP/1.1\r\n", b"a: %s\r\n" % (b"b" * 999), 431, "head exceeds 65536 bytes"),
        (b"GET / HTTP/1.1\r\na: ", b"b", 431, "head exceeds 65536 bytes"),
        (b"GET / HTTP/1.1\r\n", b"b", 431, "head exceeds 65536 bytes"),
        (b"GET /", b"a", 414, "URL exceeds 65536 bytes"),
        (b"GET /?a=", b"a", 414, "URL exceeds 65536 bytes"),
        (b"", b"\r\n", 431, "head exceeds 65536 bytes"),
        (b"POST /read HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n", 431, "256 header fields"),
        (b"POST /read HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\na: ", b"b", 431, "head exceeds 65536 bytes"),
        (b"POST /read HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;a=", b"b", 431, "head exceeds 65536 bytes"),
        (b"POST /read HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"z", 400, "Invalid HTTP request"),
        (b"", b"garbage", 400, "Invalid HTTP request"),
    ],
    ids=["fields", "long fields", "value", "name", "path", "query", "empty lines", "trailers", "trailer", "extension",
         "chunk size", "garbage"],
)  # fmt: skip
def test_a_request_without_end(start, again, status, message):
    """It is refused after its limit and one read at the most."""

    async def run():
        connection, peer = connect()
        taken = await flood(connection, peer, start, again)
        assert taken <= LIMITS.max_header_bytes + CHUNK
        assert peer.half_closed
        assert peer.refusal[0] == status
        assert message in peer.refusal[1]
        connection.data_received(b"x" * CHUNK)
        assert len(connection.headers or ()) <= LIMITS.max_header_count

    asyncio.run(run())


@pytest.mark.parametrize("path", [b"/", b"/wait", b"/read"])
def test_a_body_that_nobody_reads_is_not_kept(path):
    """Of 64 MiB less than 1 MiB is kept; the answer that came without reading them ends the connection."""

    async def run():
        connection, peer = connect()
        head = b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path, 64 << 20)
        await flood(connection, peer, head, b"x")
        assert len(connection.cycle.body) < 1 << 20
        if path == b"/":
            assert peer.half_closed
            assert b"\r\nconnection: close\r\n" in peer.written
            assert peer.written.endswith(b"hi")
        peer.close()

    asyncio.run(run())


def test_pipelined_requests_are_bounded():
    async def run():
        connection, peer = connect()
        connection.data_received(b"GET /wait HTTP/1.1\r\n\r\n" * 10_000)
        assert peer.ended.is_set()
        assert len(connection.pipeline) <= MAX_PIPELINED
        peer.close()

    asyncio.run(run())


def test_one_pipelined_request_too_many_ends_the_connection_whenever_it_comes():
    async def run():
        connection, peer = connect()
        for _ in range(1 + MAX_PIPELINED):
            connection.data_received(b"GET /wait HTTP/1.1\r\n\r\n")
            assert not peer.paused
        assert not peer.ended.is_set()
        connection.data_received(b"GET /wait HTTP/1.1\r\n\r\n")
        assert peer.ended.is_set()
        peer.close()

    asyncio.run(run())


def test_a_client_that_leaves_ends_the_request_before_a_pipelined_one():
    """uvicorn tells only the newest request of a connection that the client has left."""

    async def run() -> None:
        connection, peer = connect()
        connection.data_received(b"GET /wait HTTP/1.1\r\n\r\n" * 2)
        await asyncio.sleep(0)
        (waiting,) = connection.tasks
        peer.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert waiting.done()

    asyncio.run(run())


@pytest.mark.parametrize("count", [1, MAX_PIPELINED])
def test_a_client_that_leaves_is_noticed_behind_later_pipelined_requests(count):
    """uvicorn stops reading, and so does not notice the end of the connection, until the first request reads again."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        client, waiting = await client_that_waits()
        for _ in range(5):
            await asyncio.sleep(0)
        await loop.sock_sendall(client, b"GET /wait HTTP/1.1\r\n\r\n" * count)
        client.close()
        await asyncio.wait({waiting}, timeout=10)
        assert waiting.done()

    asyncio.run(run())


@pytest.mark.parametrize("num_before", [0, 1])
def test_a_client_that_leaves_is_noticed_behind_a_long_body(num_before):
    """uvicorn stops reading at 64 KiB of a body, also of one that waits behind another request."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        client, waiting = await client_that_waits()
        body = b"POST /read HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b" " * 1_000_000
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\n\r\n" * num_before + body)
        assert not waiting.done()
        client.close()
        await asyncio.wait({waiting}, timeout=10)
        assert waiting.done()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_the_requests_before_a_long_body_are_answered():
    async def run() -> None:
        connection, peer = connect()
        connection.data_received(b"POST /read HTTP/1.1\r\nContent-Length: 2\r\n\r\n.")
        await asyncio.sleep(0)
        body = b"POST /read HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"
        connection.data_received(b"." + b"GET / HTTP/1.1\r\n\r\n" + body + b" " * 100_000 + b"GET /" * 10_000)
        assert len(connection.pipeline) == 1
        for _ in range(50):
            connection.data_received(b" " * CHUNK)
            await asyncio.sleep(0)
        first, _, second = peer.written.partition(b"hi")
        assert b"connection: close" not in first
        assert (b"connection: close" in second, second.count(b"HTTP/1.1 200"), second[-2:]) == (True, 1, b"hi")
        assert peer.half_closed
        assert len(connection.cycle.body) <= CHUNK
        peer.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_blanks_around_a_value_are_not_of_the_value():
    """RFC 9112, section 5: they are excluded."""

    async def run() -> None:
        connection, peer = connect()
        connection.data_received(
            b"POST /read HTTP/1.1\r\na:\t b c \t\r\nExpect: 100-continue \r\nContent-Length: 2\r\n\r\n"
        )
        assert connection.headers[0] == (b"a", b"b c")
        await asyncio.sleep(0)
        assert peer.written == b"HTTP/1.1 100 Continue\r\n\r\n"

    asyncio.run(run())


def test_an_old_client_gets_no_interim_response():
    """RFC 9110, section 10.1.1: the expectation of HTTP/1.0 is ignored."""

    async def run() -> None:
        connection, peer = connect()
        connection.data_received(b"POST /read HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab")
        await asyncio.wait_for(peer.ended.wait(), 60)
        assert peer.written.startswith(b"HTTP/1.1 200 ")

    asyncio.run(run())


def test_a_connection_is_kept_for_the_next_request():
    async def run():
        connection, peer = connect()
        for request in (b"GET / HTTP/1.1\r\n\r\n", b"POST /read HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"):
            for byte in request:
                connection.data_received(bytes([byte]))
            while not connection.cycle.response_complete:
                await asyncio.sleep(0)
        assert peer.written.count(b"HTTP/1.1 200 OK") == 2
        assert b"connection: close" not in peer.written
        assert not peer.ended.is_set()
        assert connection._registry.notes == ["waiting", *("busy", "waiting", "waiting") * 2]
        peer.close()
        await asyncio.sleep(0)
        assert connection._registry.notes[-1] == "closed"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", None), (b"\r\n", None), (b"G", 408), (b"GET / HTTP/1.1\r\na: b", 408), (b"GET / HTTP/1.1\r\n\r\n", 200)],
    ids=["no byte", "an empty line", "one byte", "half a head", "after an answer"],
)
def test_a_connection_that_waits_is_closed(sent, status):
    async def run():
        connection, peer = connect(TINY)
        if sent:
            connection.data_received(sent)
        async with asyncio.timeout(30):
            while not (peer.ended.is_set() or peer.half_closed):
                await asyncio.sleep(0.01)
        assert peer.written.startswith(b"" if status is None else b"HTTP/1.1 %d" % status)
        assert bool(peer.written) == (status is not None)
        peer.close()

    asyncio.run(run())


def test_the_first_request_is_awaited_as_long_as_a_head_and_the_next_longer():
    """A client's pool keeps connections between requests; nobody has a reason to open one and send nothing."""

    async def run():
        limits = HttpLimits(header_timeout=0.05, keep_alive_timeout=600)
        _, silent = connect(limits)
        connection, answered = connect(limits)
        connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(30):
            await silent.ended.wait()
        await asyncio.sleep(0.1)
        assert answered.written.startswith(b"HTTP/1.1 200")
        assert not answered.ended.is_set()
        answered.close()

    asyncio.run(run())


def test_clients_and_proxies_close_idle_connections_first():
    """With equal timeouts a request met the server's close: httpx has 5 s, proxies usually have 60."""
    assert HttpLimits().keep_alive_timeout > 60


def test_bytes_do_not_prolong_a_head():
    """The time is that of the whole head, not of the pause between two bytes."""

    async def run():
        connection, peer = connect(TINY)
        connection.data_received(b"GET / HTTP/1.1\r\na: ")
        async with asyncio.timeout(30):
            while not peer.half_closed:
                connection.data_received(b"b")
                await asyncio.sleep(0.01)
        assert peer.refusal[0] in (408, 431)

    asyncio.run(run())


@pytest.mark.parametrize("reads_at_all", [False, True])
def test_a_reader_that_does_not_read_is_cut(reads_at_all):
    """Reading a few bytes does not prolong the wait; reading 1 KiB per second does."""

    async def run():
        connection, peer = connect(TINY)
        connection.data_received(b"GET /wait HTTP/1.1\r\n\r\n")
        peer.unread = 100_000
        connection.pause_writing()
        async with asyncio.timeout(30):
            while not peer.ended.is_set():
                peer.unread -= reads_at_all
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_slow_reader_is_kept():
    async def run():
        connection, peer = connect(TINY)
        connection.data_received(b"GET /wait HTTP/1.1\r\n\r\n")
        peer.unread = 100_000
        connection.pause_writing()
        for _ in range(5):
            peer.unread -= 2048
            connection._cancel_write_timer()  # as if it had fired
            connection._check_reader()
        assert not peer.ended.is_set()
        assert connection._write_timer is not None
        connection.resume_writing()
        assert connection._write_timer is None, "nothing cuts a client that has read everything"
        peer.close()

    asyncio.run(run())


def test_a_client_that_goes_on_after_its_answer_is_cut():
    """Its bytes are dropped for a while, so that the answer is not lost to a reset connection."""

    async def run():
        connection, peer = connect()
        await flood(connection, peer, b"POST / HTTP/1.1\r\nContent-Length: 67108864\r\n\r\n", b"x")
        assert peer.half_closed
        assert not peer.ended.is_set()
        async with asyncio.timeout(30):
            while not peer.ended.is_set():
                connection.data_received(b"x" * CHUNK)
                await asyncio.sleep(0.01)
        assert len(connection.cycle.body) < 1 << 20

    asyncio.run(run())
