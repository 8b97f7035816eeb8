"""A server with small limits, attacked: what exceeds them is refused, and everybody else is served.

Sizes of what a connection keeps are asserted in tests/protos/test_http_connection.py.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from support.checkpoints import with_long_context, with_tokenizer
from support.served import eventually, serve, value

pytestmark = pytest.mark.long

NAME = "llama-gqa-tied"
SOUND = {"prompt": "x", "max_tokens": 2}
LIMITS = {
    "h11-max-incomplete-event-size": 8192,
    "h11-max-header-count": 32,
    "max-body-bytes": 100_000,
    "header-timeout": 1,
    "body-timeout": 1,
    "timeout-keep-alive": 1,
    "write-timeout": 1,
    "max-unread-bytes": 65536,
}


@pytest.fixture(scope="module")
def served(checkpoint, tmp_path_factory):
    longer = with_long_context(checkpoint(NAME), tmp_path_factory.mktemp("longer"))
    model = with_tokenizer(longer, tmp_path_factory.mktemp("http"))
    options = [f"--{name}={limit}" for name, limit in LIMITS.items()]
    with serve(model, *options) as served:
        yield served


@contextlib.contextmanager
def connection(served) -> Iterator[socket.socket]:
    address = urlsplit(served.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as peer:
        yield peer


def answer(peer: socket.socket) -> tuple[int, dict]:
    """Status and error of an answer that ends its connection."""
    data = b""
    while block := peer.recv(65536):
        data += block
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


def post(num_bytes: int | None = None) -> bytes:
    """Return the head of a request with a body of a length, or with one of chunks."""
    length = "Transfer-Encoding: chunked" if num_bytes is None else f"Content-Length: {num_bytes}"
    fields = f"Host: localhost\r\nContent-Type: application/json\r\n{length}"
    return f"POST /v1/completions HTTP/1.1\r\n{fields}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000, 431, "more than 32 header fields"),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 600_000, 431, "head exceeds 8192 bytes"),
        (b"GET /" + b"a" * 600_000, 414, "URL exceeds 8192 bytes"),
        (b"GET / HTTP/1.1\r\na: b", 408, "head was not complete within 1 s"),
        (post(10**9), 413, "body exceeds 100000 bytes"),
        (post() + b"10000\r\n%s\r\n" % (b" " * 65536) * 2, 413, "body exceeds 100000 bytes"),
        (post(100) + b'{"prompt":', 408, "body came too slowly"),
    ],
    ids=["fields", "value", "URL", "slow head", "long body", "long body in chunks", "slow body"],
)
def test_a_request_beyond_a_limit(served, sent, status, message):
    with connection(served) as peer:
        peer.sendall(sent)
        found, error = answer(peer)
    assert found == status
    assert message in error["message"]
    assert httpx.post(f"{served.url}/v1/completions", json=SOUND).status_code == 200


def test_a_body_that_drips_is_cut(served):
    """Single bytes do not prolong the wait for a body."""
    with connection(served) as peer:
        peer.sendall(post(100))
        peer.settimeout(0.1)

        def answered() -> bool:
            with contextlib.suppress(BrokenPipeError):
                peer.send(b" ")
            try:
                return b" 408 " in peer.recv(1024)
            except TimeoutError:
                return False

        assert eventually(answered)


def test_a_body_that_flows_is_served(served):
    """It takes longer than the time-out, which is for pauses alone."""
    body = b" " * 80_000 + json.dumps(SOUND).encode()
    with connection(served) as peer:
        peer.sendall(post(len(body)))
        for start in range(0, len(body), 10_000):
            peer.settimeout(0.2)
            with pytest.raises(TimeoutError):
                peer.recv(1)
            peer.sendall(body[start : start + 10_000])
        peer.settimeout(60)
        assert peer.recv(1024).startswith(b"HTTP/1.1 200")


def test_a_connection_without_a_request_is_closed(served):
    with connection(served) as silent, connection(served) as kept:
        kept.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(1024).startswith(b"HTTP/1.1 200")
        for peer in (silent, kept):
            while peer.recv(1024):
                pass


def test_a_reader_that_never_reads_ends_its_generation(served):
    """The engine's work for it is cancelled, long before its 8,000 tokens per choice are made."""
    body = {"prompt": "x", "max_tokens": 8000, "n": 4, "ignore_eos": True, "stream": True}
    content = json.dumps({**body, "stream_options": {"include_usage": True}, "logprobs": 5}).encode()
    metrics = f"{served.url}/metrics"
    before = value(httpx.get(metrics).text, "generation_tokens_total")
    with connection(served) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(post(len(content)) + content)
        assert eventually(lambda: value(httpx.get(metrics).text, "generation_tokens_total") > before)
        assert eventually(lambda: value(httpx.get(metrics).text, "num_requests_running") == 0)
    assert value(httpx.get(metrics).text, "generation_tokens_total") - before < 4 * 8000
    assert httpx.post(f"{served.url}/v1/completions", json=SOUND).status_code == 200


@pytest.mark.parametrize(
    "forgery",
    [
        {"url": "/x%0A2026-11-21 00:00:00,000 CRITICAL FORGED%1b[2J%E2%80%A8".replace(" ", "%20")},
        {"url": "/x%20200%200.001%20s%20id%20FORGED"},
        {"url": "/x", "headers": {"X-Request-Id": "a b 200 0.001 s id FORGED"}},
        {"url": "/x", "headers": {"X-Request-Id": "FORGED" * 22}},
        {"url": "/" + "FORGED" * 100},
    ],
    ids=["path", "path with blanks", "request id", "long request id", "long path"],
)
def test_no_client_forges_a_log_line(served, forgery):
    """Each request has one line, which ends with an id of the server's."""
    count = len(served.log)
    answer = httpx.get(served.url + forgery["url"], headers=forgery.get("headers"))
    assert answer.status_code == 404
    assert eventually(lambda: any(answer.headers["x-request-id"] in line for line in served.log[count:]))
    (line,) = [line for line in served.log[count:] if " GET /" in line]
    assert re.fullmatch(
        r"\S+ \S+ INFO orca_master.endpoint.middleware: GET \S{2,256} 404 \d+\.\d{3} s id [0-9a-f]{32}", line
    )
    assert line.isprintable()
    assert not [line for line in served.log[count:] if line.startswith("2026-11-21 00:00:00") or "\x1b" in line]


def test_a_rebound_name_is_refused(served):
    """The server listens on a loopback address: other names lead to it from web pages alone."""
    refused = httpx.get(f"{served.url}/v1/models", headers={"Host": "attacker.example"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "--allowed-hosts" in refused.json()["error"]["message"]
    assert httpx.get(f"{served.url}/v1/models", headers={"Host": "LOCALHOST:1"}).status_code == 200
