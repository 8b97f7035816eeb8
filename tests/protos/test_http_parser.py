"""A request that offers an upgrade is parsed as the same request without the offer; uvicorn's parser loses its body."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httptools
import pytest
from orca_protos.http import serving
from orca_protos.http_limits import HttpLimits
from orca_protos.http_parser import RequestParser
from orca_protos.listening import listen

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
NAMES = (b"Connection", b"Upgrade", b"HTTP2-Settings")


class Events:
    """Callbacks that note their calls; consecutive parts of a URL or of a body are one."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def _join(self, kind: str, data: bytes) -> None:
        if self.seen and self.seen[-1][0] == kind:
            data = self.seen.pop()[1] + data
        self.seen.append((kind, data))

    def on_message_begin(self) -> None:
        self.seen.append(("begin",))

    def on_url(self, url: bytes) -> None:
        self._join("url", url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name not in NAMES:
            self.seen.append(("header", name, value))

    def on_headers_complete(self) -> None:
        self.seen.append(("head",))

    def on_body(self, body: bytes) -> None:
        self._join("body", body)

    def on_message_complete(self) -> None:
        self.seen.append(("end",))


def parsed(data: bytes, sizes: list[int]) -> list[tuple[Any, ...]]:
    """Return the calls for data that comes in parts of these sizes; the last one may be an error."""
    events: Any = Events()
    parser, start = RequestParser(events), 0
    try:
        for size in [*sizes, len(data)]:
            parser.feed_data(data[start : start + size])
            start += size
    except httptools.HttpParserError as error:
        events.seen.append(("error", str(error)))
    return list(events.seen)


REQUESTS = [
    b"GET /a HTTP/1.1\r\nHost: x\r\n%s\r\n",
    b"POST /b HTTP/1.1\r\n%sContent-Length: 5\r\n\r\nhello",
    b"POST /c HTTP/1.1\r\nContent-Length: 0\r\n%s\r\n",
    b"POST /d HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\nT: 7\r\n\r\n",
    b"POST /e HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n%s\r\n1\r\na\r\n0\r\n\r\n",
    b"POST /f HTTP/1.1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n%s\r\n1\r\na\r\n0\r\n\r\n",
    # The body looks like a request.
    b"POST /g HTTP/1.1\r\nContent-Length: 18\r\n%s\r\nGET / HTTP/1.1\r\n\r\n",
]  # fmt: skip
WRONG = [
    b"POST / HTTP/1.1\r\n%sContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 5\r\n%sContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nContent-Length: -5\r\n%s\r\nhello",
    b"POST / HTTP/1.1\r\nContent-Length: 5 5\r\n%s\r\nhello",
    b"POST / HTTP/1.1\r\n%sTransfer-Encoding: gzip\r\n\r\nhello",
    b"POST / HTTP/1.1\r\n%sTransfer-Encoding: chunked, gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\nz\r\nhello\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("request_text", [*REQUESTS, *WRONG])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_offered_upgrade_changes_nothing(request_text, size):
    behind = b"GET /behind HTTP/1.1\r\n\r\n"
    offered, plain = (request_text % fields + behind for fields in (OFFER, b""))
    found = parsed(offered, [size] * (len(offered) // size))
    assert found == parsed(plain, [])
    assert found[-1][0] == ("error" if request_text in WRONG else "end")


@pytest.mark.parametrize("version_and_fields", [b"1.1\r\nConnection: close", b"1.0"])
def test_a_connection_that_is_not_kept_has_no_request_behind_its_last(version_and_fields):
    """As without an offer; uvicorn closes the connection after the response."""
    request = b"POST /a HTTP/%s\r\nContent-Length: 5\r\n%s\r\nhelloGET /b HTTP/1.1\r\n\r\n"
    offer = OFFER.replace(b"Connection: ", b"Connection: close, ") if b"close" in version_and_fields else OFFER
    plain = parsed(request % (version_and_fields, b""), [])
    assert parsed(request % (version_and_fields, offer), []) == plain


def test_an_old_connection_that_is_kept_has_requests_behind_its_first():
    request = b"POST /a HTTP/1.0\r\nConnection: keep-alive%s\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\n\r\n"
    plain = parsed(request % b"", [])
    assert parsed(request % b", Upgrade\r\nUpgrade: h2c", []) == plain
    assert [kind for kind, *_ in plain].count("end") == 2


@pytest.mark.parametrize("seed", range(50))
def test_pipelined_requests_in_any_parts(seed):
    drawn = random.Random(seed)
    chosen = [drawn.choice(REQUESTS) for _ in range(8)]
    offered = b"".join(text % (OFFER if drawn.random() < 0.6 else b"") for text in chosen)
    sizes = [drawn.randint(1, 80) for _ in range(60)]
    assert parsed(offered, sizes) == parsed(b"".join(text % b"" for text in chosen), [])


async def _count(scope, receive, send) -> None:
    """Answer with the length of the body."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    answer = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})


def test_a_connection_serves_requests_with_and_without_an_offer():
    async def run() -> list[bytes]:
        listener, answers = listen("127.0.0.1", 0), []
        async with serving(_count, listener, HttpLimits()):
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            for text in (*REQUESTS, *REQUESTS):
                writer.write(text % (b"Host: x\r\n" + OFFER))
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                answers.append(await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0])))
            writer.close()
        return answers

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [b"0", b"5", b"0", b"8", b"1", b"1", b"18"] * 2
